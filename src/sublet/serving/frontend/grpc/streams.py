"""One call on a connection: its messages as they come, the task that answers it, and its end."""

import asyncio
import logging

from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.serving.frontend.backpressure import DelayedRefusal
from sublet.serving.frontend.grpc import calls, frames
from sublet.serving.frontend.grpc.calls import Data, Head, Method, caller
from sublet.serving.frontend.grpc.frames import Fault, StreamFault
from sublet.serving.frontend.grpc.incoming import Incoming
from sublet.serving.frontend.grpc.sending import Outgoing, Sender
from sublet.serving.frontend.limits import Limits, MemoryBudget, Pace, exhausted
from sublet.serving.frontend.peer import Peer
from sublet.serving.frontend.request_traces import incoming

WINDOW = 4 << 20
"""Bytes that a client may send ahead in one stream."""

log = logging.getLogger(__name__)


class Stream:
    """One call. The connection hands it what comes; a service that streams has it as its `Call`.
    It ends once: with an answer, with `end`, or with `drop`."""

    def __init__(
        self,
        number: int,
        head: Head,
        method: Method,
        sender: Sender,
        budget: MemoryBudget,
        deadline: float | None,
        limit: int,
        peer: Peer,
    ) -> None:
        self.head = head
        self.method = method
        self.out = Outgoing(number, sender.initial)
        self.deadline = deadline
        self.peer = peer
        self.ended = False  # Whether the client has sent its last.
        self.dropped = False
        self._sender = sender
        self._budget = budget
        self._window = WINDOW  # Bytes that the client may still send.
        self._held = 0  # Bytes that are taken of the memory budget.
        self._received = 0  # Bytes that have come in all.
        self._body = 0  # Those of them that are no padding.
        self._pace: Pace | None = None  # The pace of a message that is not complete.
        self._stuck: tuple[int, float] = (0, 0.0)
        """Bytes of the answer that the client does not take, and since when."""
        self._loop = sender.loop
        self._task: asyncio.Task[None] | None = None
        self._incoming = Incoming(head.encoding, limit, method.memory)
        self._reader: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        if head.timeout is not None:
            self._timer = self._loop.call_later(head.timeout, self._expire)
        if method.streaming is not None:
            self._task = self._loop.create_task(self._stream())

    # What comes

    def place(self) -> memoryview | None:
        """Where the next bytes of the body can be put, if it matters where."""
        return self._incoming.place()

    def receive(self, piece: Data | None, size: int, last: bool) -> None:
        """Take a piece of the body, None if it was put into its place; `size` is its cost of the
        window."""
        self._window -= size
        if self._window < 0:
            raise StreamFault(self.out.number, Fault.FLOW_CONTROL_ERROR)
        self._received += size
        self._body += size if piece is None else len(piece)
        length = self.head.length
        if length is not None and (self._body > length or (last and self._body < length)):
            raise StreamFault(self.out.number, Fault.PROTOCOL_ERROR)
        self.ended = last
        try:
            if piece is None:
                self._incoming.came(size)
            elif piece:
                self._incoming.take(piece)
            self._check()
            if last:
                self._finish()
            self._account()
        except ServingError as wrong:
            self.end(wrong.code, wrong.message)
        except (MemoryError, OSError):
            # That is no fault of the others on this connection.
            refusal = exhausted()
            self.end(refusal.code, refusal.message)
        else:
            self._refill()

    def sweep(self, now: float, limits: Limits) -> bool:
        """Look at the clocks. True: it has to be ended without a word, as nobody listens."""
        late = self.deadline is not None and self.deadline <= now
        if self._unread(now, limits.idle) or (late and self.out.queue):
            return True
        if self.ended or not (self._incoming.cut_off or self.method.unary is not None):
            self._pace = None
        elif self._pace is None:
            self._pace = Pace(now, self._received)
        elif self._pace.too_slow(self._received, now, limits):
            self.end(Code.DEADLINE_EXCEEDED, "The request came too slowly.")
        return False

    def _expire(self) -> None:
        """The time of the call has passed, whatever it does. An answer that is on its way may
        still be read, until the next sweep."""
        if not self.out.queue:
            self.end(Code.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _unread(self, now: float, most: float) -> bool:
        """Whether the client has taken nothing of its answer for so long."""
        left = sum(map(len, self.out.queue))
        if not left or left != self._stuck[0]:
            self._stuck = (left, now)
        return now - self._stuck[1] > most

    def _check(self) -> None:
        messages = self._incoming.messages
        if messages:
            self._wake()
            if len(messages) > 1 and self.method.unary is not None:
                raise ServingError("This method takes one message.", Code.INTERNAL)

    def _finish(self) -> None:
        if self._incoming.cut_off:
            raise ServingError("The last message is cut off.", Code.INTERNAL)
        self._wake()
        if self.method.unary is not None:
            if not self._incoming.messages:
                raise ServingError("The call has no message.", Code.INTERNAL)
            self._task = self._loop.create_task(self._unary(self._incoming.messages.popleft()))

    async def read(self) -> Data | None:
        while not self._incoming.messages:
            if self.ended:
                return None
            self._reader = self._loop.create_future()
            await self._reader
        message = self._incoming.messages.popleft()
        self._account()
        self._refill()
        return message

    def _account(self) -> None:
        """Take of the memory budget what waits here, or give back what does not any more."""
        if self.dropped:
            return
        held = self._incoming.cost + sum(map(len, self.out.queue))
        if held > self._held:
            self._budget.take(held - self._held)
        elif held < self._held:
            self._budget.give(self._held - held)
        self._held = held

    def _refill(self) -> None:
        """Let the client send more, unless the service is behind."""
        behind = self.ended or self._incoming.messages or self.dropped
        if self._window < WINDOW // 2 and not behind:
            self._sender.put(frames.window_update(self.out.number, WINDOW - self._window))
            self._window = WINDOW

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # What goes

    async def _unary(self, message: Data) -> None:
        assert self.method.unary is not None
        try:
            caller.set(self.peer)  # For this task.
            if self.head.trace:
                incoming.set(self.head.trace)
            answer = await self.method.unary(message, self.deadline)
        except DelayedRefusal as refused:
            await refused.due
            self.end(refused.code, refused.message)
        except ServingError as wrong:
            self.end(wrong.code, wrong.message)
        except Exception:
            self._fail()
        else:
            if not self.dropped:
                self._sender.answer(self.out, answer)
                self._hold()

    async def _stream(self) -> None:
        assert self.method.streaming is not None
        try:
            caller.set(self.peer)  # For this task.
            if self.head.trace:
                incoming.set(self.head.trace)
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
        self._hold()
        while self.out.queue:
            self.out.waiter = self._loop.create_future()
            await self.out.waiter
        self._account()

    def _hold(self) -> None:
        """Count what the client does not take yet. What does not fit into the budget is dropped."""
        try:
            self._account()
        except ServingError as wrong:
            self._sender.forget(self.out)
            self.end(wrong.code, wrong.message)

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
        """Forget the call: nobody waits for it any more."""
        self.dropped = True
        if self._timer is not None:
            self._timer.cancel()
        self._budget.give(self._held)
        self._held = 0
        self._sender.forget(self.out)
        # A cancelled task keeps its frames, with the tensors and this stream in them: whoever keeps
        # the task in turn keeps all of it until the next collection, which may be far away.
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
