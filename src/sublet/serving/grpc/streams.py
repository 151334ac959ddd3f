"""One call on a connection: its messages as they come, the task that answers it, and its end."""

import asyncio
import logging
from collections import deque

from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.serving.grpc import calls, frames
from sublet.serving.grpc.calls import PREFIX, Data, Head, Method
from sublet.serving.grpc.frames import Fault, StreamFault
from sublet.serving.grpc.sending import Outgoing, Sender
from sublet.serving.room import Room

WINDOW = 4 << 20
"""Bytes that a client may send ahead in one stream."""

log = logging.getLogger(__name__)


class Stream:
    """A call. The connection hands it what comes; a service that streams has it as its `Call`.

    It ends once: with an answer, with `end`, or with `drop`, after which nobody waits for it.
    """

    __slots__ = (
        "_body",
        "_held",
        "_limit",
        "_loop",
        "_messages",
        "_reader",
        "_room",
        "_sender",
        "_task",
        "_window",
        "deadline",
        "dropped",
        "ended",
        "head",
        "method",
        "out",
    )

    def __init__(
        self,
        number: int,
        head: Head,
        method: Method,
        sender: Sender,
        room: Room,
        deadline: float | None,
        limit: int,
    ) -> None:
        self.head = head
        self.method = method
        self.out = Outgoing(number, sender.initial)
        self.deadline = deadline
        self.ended = False
        """Whether the client has sent its last."""
        self.dropped = False
        self._sender = sender
        self._room = room
        self._limit = limit
        self._window = WINDOW
        """Bytes that the client may still send."""
        self._held = 0
        """Bytes that are taken of the room."""
        self._loop = sender.loop
        self._task: asyncio.Task[None] | None = None
        self._body: bytes | bytearray = b""
        self._messages: deque[Data] = deque()
        self._reader: asyncio.Future[None] | None = None
        if method.streaming is not None:
            self._task = self._loop.create_task(self._stream())

    # What comes

    def receive(self, piece: bytes, size: int, last: bool) -> None:
        """Take a piece of the body; `size` is what it costs of the window."""
        self._window -= size
        if self._window < 0:
            raise StreamFault(self.out.number, Fault.FLOW_CONTROL_ERROR)
        self.ended = last
        try:
            if piece:
                self._take(piece)
            if last:
                self._finish()
            self._account()
        except ServingError as wrong:
            self.end(wrong.code, wrong.message)
        else:
            self._refill()

    def _take(self, piece: bytes) -> None:
        if not self._body:
            self._body = piece
        elif isinstance(self._body, bytes):
            self._body = bytearray(self._body) + piece
        else:
            self._body += piece
        while len(self._body) >= PREFIX:
            size = int.from_bytes(self._body[1:PREFIX], "big")
            if size > self._limit:
                raise calls.too_large(size, self._limit)
            end = PREFIX + size
            if len(self._body) < end:
                return
            if len(self._body) == end:
                whole, self._body = self._body, b""
            else:
                whole, self._body = self._body[:end], self._body[end:]
            if self.method.unary is not None and self._messages:
                raise ServingError("This method takes one message.", Code.INTERNAL)
            self._messages.append(calls.unpack(whole, self.head.encoding, self._limit))
            self._wake()

    def _finish(self) -> None:
        if self._body:
            raise ServingError("The last message is cut off.", Code.INTERNAL)
        self._wake()
        if self.method.unary is not None:
            if not self._messages:
                raise ServingError("The call has no message.", Code.INTERNAL)
            self._task = self._loop.create_task(self._unary(self._messages.popleft()))

    async def read(self) -> Data | None:
        while not self._messages:
            if self.ended:
                return None
            self._reader = self._loop.create_future()
            await self._reader
        message = self._messages.popleft()
        self._account()
        self._refill()
        return message

    def _account(self) -> None:
        """Take of the room what waits here, or give back what does not any more."""
        held = len(self._body) + sum(map(len, self._messages))
        if held > self._held:
            self._room.take(held - self._held)
        elif held < self._held:
            self._room.give(self._held - held)
        self._held = held

    def _refill(self) -> None:
        """Let the client send more, unless the service is behind."""
        if self._window < WINDOW // 2 and not (self.ended or self._messages or self.dropped):
            self._sender.put(frames.window_update(self.out.number, WINDOW - self._window))
            self._window = WINDOW

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # What goes

    async def _unary(self, message: Data) -> None:
        assert self.method.unary is not None
        try:
            answer = await self.method.unary(message, self.deadline)
        except ServingError as wrong:
            self.end(wrong.code, wrong.message)
        except Exception:
            self._fail()
        else:
            if not self.dropped:
                self._sender.answer(self.out, answer)

    async def _stream(self) -> None:
        assert self.method.streaming is not None
        try:
            await self.method.streaming(self)
        except ServingError as wrong:
            self.end(wrong.code, wrong.message)
        except Exception:
            self._fail()
        else:
            self.end(Code.OK, "")

    async def write(self, message: Data) -> None:
        self._sender.open(self.out)
        self._sender.message(self.out, message)
        while self.out.queue:
            self.out.waiter = self._loop.create_future()
            await self.out.waiter

    def _fail(self) -> None:
        log.exception("a call of %s failed", self.head.path.decode("utf-8", "replace"))
        self.end(Code.INTERNAL, "The server failed. Its log says how.")

    def end(self, code: int, text: str) -> None:
        """Say how the call ended, after what was written."""
        if self.dropped:
            return
        opened = self.out.opened or code == Code.OK
        if opened:
            self._sender.open(self.out)
        block = calls.ending(code, text) if opened else calls.failure(code, text)
        flags = frames.END_HEADERS | frames.END_STREAM
        self._sender.end(self.out, frames.frame(frames.HEADERS, flags, self.out.number, block))

    def drop(self) -> None:
        """Nobody waits for this call any more."""
        self.dropped = True
        self._room.give(self._held)
        self._held = 0
        self._sender.forget(self.out)
        # A cancelled task keeps its frames, with the tensors and this stream in them: whoever keeps
        # the task in turn keeps all of it until the next collection, which may be far away.
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
