"""What goes out on a connection, within the windows that the client gives."""

import asyncio
from collections import deque
from collections.abc import Callable

from sublet.serving.frontend.grpc.calls import ENDING, OPENING, Data
from sublet.serving.frontend.grpc.frames import (
    END_HEADERS,
    END_STREAM,
    HEADERS,
    LARGEST_WINDOW,
    ConnectionFault,
    Fault,
    StreamFault,
    frame,
)

_OPEN = frame(HEADERS, END_HEADERS, 0, OPENING)
_OPEN_HEAD, _OPEN_BLOCK = _OPEN[:5], _OPEN[9:]
_END = frame(HEADERS, END_HEADERS | END_STREAM, 0, ENDING)
_END_HEAD, _END_BLOCK = _END[:5], _END[9:]


class Outgoing:
    """The sending half of a stream."""

    __slots__ = ("ending", "label", "number", "opened", "queue", "waiter", "window")

    def __init__(self, number: int, window: int) -> None:
        self.number = number
        self.label = number.to_bytes(4, "big")
        self.window = window  # Bytes that the client takes in this stream.
        self.queue: deque[memoryview] = deque()
        self.opened = False
        self.ending: bytes | None = None  # The last frame, once the queue is empty.
        self.waiter: asyncio.Future[None] | None = None


class Sender:
    """Everything that is sent in one turn of the loop leaves in one write."""

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        ended: Callable[[int], None],
    ) -> None:
        self._transport = transport
        self.loop = loop
        self._ended = ended
        self._out: list[bytes | memoryview] = []
        self._blocked: dict[int, Outgoing] = {}
        self._flushing = False
        self._window = 65535
        self._frame = 16384
        self.initial = 65535

    def put(self, data: bytes) -> None:
        """Send frames that need no window."""
        self._out.append(data)
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flushing = False
        if self._out:
            out, self._out = self._out, []
            self._transport.writelines(out)

    def answer(self, stream: Outgoing, message: Data) -> None:
        """Headers, the one message and the trailers: a unary call that went well."""
        size = len(message) + 5
        if size > self._frame or size > self._window or size > stream.window:
            self.open(stream)
            self.message(stream, message)
            self.end(stream, _END_HEAD + stream.label + _END_BLOCK)
            return
        self._window -= size
        label = stream.label
        self.put(
            b"".join(
                (
                    _OPEN_HEAD,
                    label,
                    _OPEN_BLOCK,
                    size.to_bytes(3, "big"),
                    b"\0\0",
                    label,
                    (size - 5).to_bytes(5, "big"),
                    message,
                    _END_HEAD,
                    label,
                    _END_BLOCK,
                )
            )
        )
        self._ended(stream.number)

    def open(self, stream: Outgoing) -> None:
        """Send the headers of an answer, once."""
        if not stream.opened:
            stream.opened = True
            self.put(_OPEN_HEAD + stream.label + _OPEN_BLOCK)

    def message(self, stream: Outgoing, message: Data) -> None:
        """Send a message as far as the client takes it, the rest later."""
        stream.queue.append(memoryview(len(message).to_bytes(5, "big")))
        if message:
            stream.queue.append(memoryview(message))
        self._pump(stream)

    def end(self, stream: Outgoing, last: bytes) -> None:
        """Send the last frame of a stream, after its messages."""
        stream.ending = last
        self._pump(stream)

    def forget(self, stream: Outgoing) -> None:
        self._blocked.pop(stream.number, None)
        stream.queue.clear()
        self._wake(stream)

    def credit(self, stream: Outgoing | None, size: int) -> None:
        """The client takes more, in a stream or in all."""
        if stream is None:
            self._window += size
            if self._window > LARGEST_WINDOW:
                raise ConnectionFault(Fault.FLOW_CONTROL_ERROR, "window too large")
            for blocked in list(self._blocked.values()):
                self._pump(blocked)
        else:
            stream.window += size
            if stream.window > LARGEST_WINDOW:
                raise StreamFault(stream.number, Fault.FLOW_CONTROL_ERROR)
            self._pump(stream)

    def set_frame(self, size: int) -> None:
        """The largest frame that the client takes."""
        self._frame = min(size, 1 << 20)

    def set_initial(self, size: int, streams: list[Outgoing]) -> None:
        """The window of new streams; those that are open change by the difference."""
        change, self.initial = size - self.initial, size
        for stream in streams:
            stream.window += change
            if stream.window > LARGEST_WINDOW:
                raise ConnectionFault(Fault.FLOW_CONTROL_ERROR, "window too large")
            self._pump(stream)

    def _pump(self, stream: Outgoing) -> None:
        queue = stream.queue
        while queue and (size := min(len(queue[0]), self._window, stream.window, self._frame)) > 0:
            self._window -= size
            stream.window -= size
            self.put(size.to_bytes(3, "big") + b"\0\0" + stream.label)
            self._out.append(queue[0][:size])
            if size == len(queue[0]):
                queue.popleft()
            else:
                queue[0] = queue[0][size:]
        if queue:
            self._blocked[stream.number] = stream
            return
        self._blocked.pop(stream.number, None)
        self._wake(stream)
        if stream.ending is not None:
            self.put(stream.ending)
            stream.ending = None
            self._ended(stream.number)

    @staticmethod
    def _wake(stream: Outgoing) -> None:
        if stream.waiter is not None and not stream.waiter.done():
            stream.waiter.set_result(None)
