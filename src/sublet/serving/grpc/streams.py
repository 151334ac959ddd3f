"""One call on a connection: its messages as they come in, and the task that answers it."""

import asyncio
from collections import deque

from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.serving.grpc.calls import PREFIX, Data, Head, Method, too_large, unpack
from sublet.serving.grpc.sending import Outgoing, Sender


class Stream:
    """The receiving half of a stream, and its sending half as `out`.

    A service that streams has it as its call.
    """

    __slots__ = (
        "_body",
        "_limit",
        "_messages",
        "_reader",
        "_sender",
        "deadline",
        "ended",
        "head",
        "method",
        "out",
        "task",
        "window",
    )

    def __init__(
        self,
        number: int,
        head: Head,
        method: Method,
        sender: Sender,
        window: int,
        deadline: float | None,
        limit: int,
    ) -> None:
        self.head = head
        self.method = method
        self.out = Outgoing(number, sender.initial)
        self.window = window
        """Bytes that the client may still send."""
        self.deadline = deadline
        self.ended = False
        """Whether the client has sent its last."""
        self.task: asyncio.Task[None] | None = None
        self._sender = sender
        self._limit = limit
        self._body: bytes | bytearray = b""
        self._messages: deque[Data] = deque()
        self._reader: asyncio.Future[None] | None = None

    def receive(self, piece: bytes) -> None:
        """Take a piece of the body; raises ServingError if it is no message, or a large one."""
        if not self._body:
            self._body = piece
        elif isinstance(self._body, bytes):
            self._body = bytearray(self._body) + piece
        else:
            self._body += piece
        while len(self._body) >= PREFIX:
            size = int.from_bytes(self._body[1:PREFIX], "big")
            if size > self._limit:
                raise too_large(size, self._limit)
            end = PREFIX + size
            if len(self._body) < end:
                return
            if len(self._body) == end:
                whole, self._body = self._body, b""
            else:
                whole, self._body = self._body[:end], self._body[end:]
            self._put(unpack(whole, self.head.encoding, self._limit))

    def _put(self, message: Data) -> None:
        if self.method.unary is not None and self._messages:
            raise ServingError("This method takes one message.", Code.INTERNAL)
        self._messages.append(message)
        self._wake()

    def finish(self) -> None:
        """Make sure that the client has sent its last message to the end."""
        if self._body:
            raise ServingError("The last message is cut off.", Code.INTERNAL)
        self._wake()

    def single(self) -> Data:
        """The one message of a unary call."""
        if not self._messages:
            raise ServingError("The call has no message.", Code.INTERNAL)
        return self._messages.popleft()

    async def read(self) -> Data | None:
        while not self._messages:
            if self.ended:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return self._messages.popleft()

    async def write(self, message: Data) -> None:
        self._sender.open(self.out)
        self._sender.message(self.out, message)
        while self.out.queue:
            self.out.waiter = asyncio.get_running_loop().create_future()
            await self.out.waiter

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
