"""What a client says in frames, and what is said back: the streams of one connection.

It trusts nothing: what a client may hold is bounded by settings that it must keep to, and a client
that breaks the protocol loses the stream, or the connection if there is no other way.
"""

import asyncio
import time
from typing import TYPE_CHECKING

from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.serving.frontend.grpc import calls, frames, hpack, streams
from sublet.serving.frontend.grpc.frames import ConnectionFault, Fault, Setting, StreamFault
from sublet.serving.frontend.grpc.reading import LARGEST_FRAME, Block, Blocks, Data
from sublet.serving.frontend.grpc.sending import Sender
from sublet.serving.frontend.grpc.streams import Stream
from sublet.serving.frontend.peer import Peer

if TYPE_CHECKING:
    from sublet.serving.frontend.grpc.server import GrpcServer


MOST_STREAMS = 2048
WINDOW = 16 << 20
MOST_RESETS = 2000
"""Streams that may be given up within a second, by the client or for what it sent."""
DRAIN_PING = b"draining"


class Conversation:
    """One connection, from its first byte to its last. After a ConnectionFault it must be ended."""

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        context: "GrpcServer",
        peer: Peer,
    ) -> None:
        self.sender = Sender(transport, loop, self._answered)
        self.settled = False  # Whether the client has sent its settings.
        self.draining = False
        """Whether the client knows that no more calls are taken."""
        self.calls = 0  # Begun by the client.
        self._transport = transport
        self._loop = loop
        self._context = context
        self._peer = peer
        self._streams: dict[int, Stream] = {}
        self._blocks = Blocks()
        self._last = 0
        self._reset_here: dict[int, None] = {}
        """Streams that were ended here before the client has: it may not have heard of it yet."""
        self._window = WINDOW
        self._resets = 0
        self._resets_since = 0.0
        self._refusing = False
        self._over = False

    def greet(self) -> None:
        """The client speaks HTTP/2: say what it may do."""
        self.sender.put(
            frames.settings(
                {
                    Setting.MAX_CONCURRENT_STREAMS: MOST_STREAMS,
                    Setting.INITIAL_WINDOW_SIZE: streams.WINDOW,
                    Setting.MAX_FRAME_SIZE: LARGEST_FRAME,
                    Setting.MAX_HEADER_LIST_SIZE: hpack.LARGEST_LIST,
                }
            )
            + frames.window_update(0, WINDOW - 65535)
        )

    @property
    def block(self) -> object:
        """Headers that are not complete, if there are any."""
        return self._blocks.begun

    @property
    def busy(self) -> bool:
        return bool(self._streams)

    def sweep(self, now: float) -> None:
        """End calls whose time has passed, that come too slowly, or whose answers nobody reads."""
        for stream in list(self._streams.values()):
            if stream.sweep(now, self._context.limits):
                self._send_reset(stream.out.number, Fault.CANCEL)
                self._drop(stream)
        self.sender.flush()

    def place(self, number: int) -> memoryview | None:
        """Where the next bytes of a stream can be put, if it matters where."""
        stream = self._streams.get(number)
        return None if stream is None else stream.place()

    def drain(self) -> None:
        """Take no new calls, and close when those under way are answered. First comes a GOAWAY
        that refuses nothing. The client's answer to the ping shows that it knows; later calls
        are refused."""
        if not self.draining:
            self.draining = True
            self.sender.put(frames.goaway(frames.LAST_STREAM, Fault.NO_ERROR))
            self.sender.put(frames.frame(frames.PING, 0, 0, DRAIN_PING))

    def end(self, wrong: ConnectionFault | None = None) -> None:
        """End it, and tell the client why, if it still listens. Nobody waits for its calls."""
        self._over = True
        if wrong is not None:
            self.sender.put(frames.goaway(self._last, wrong.fault, str(wrong)))
            self.sender.flush()
        for stream in list(self._streams.values()):
            self._drop(stream)

    # Frames

    def frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if not self.settled and kind != frames.SETTINGS:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "SETTINGS must come first")
        if self._blocks.begun is not None and kind != frames.CONTINUATION:
            raise _incomplete()
        try:
            match kind:
                case frames.DATA:
                    size = len(payload)
                    if flags & frames.PADDED:
                        payload = frames.unpadded(payload)
                    self.data(number, payload, size, bool(flags & frames.END_STREAM))
                case frames.HEADERS:
                    if not number & 1:
                        raise ConnectionFault(Fault.PROTOCOL_ERROR, "a client's streams are odd")
                    self._request(self._blocks.begin(flags, number, payload))
                case frames.CONTINUATION:
                    self._request(self._blocks.go_on(flags, number, payload))
                case frames.RST_STREAM:
                    self._reset(number, payload)
                case frames.SETTINGS:
                    self._settings(flags, number, payload)
                case frames.PING:
                    self._ping(flags, number, payload)
                case frames.WINDOW_UPDATE:
                    self._credit(number, payload)
                case frames.PRIORITY:
                    if len(payload) != 5:
                        raise StreamFault(number, Fault.FRAME_SIZE_ERROR)
                case frames.PUSH_PROMISE:
                    raise ConnectionFault(Fault.PROTOCOL_ERROR, "clients cannot push")
                case frames.GOAWAY if number:
                    raise ConnectionFault(Fault.PROTOCOL_ERROR, "GOAWAY in a stream")
        except StreamFault as wrong:
            if not wrong.stream:
                raise ConnectionFault(wrong.fault, "frame in stream 0") from None
            self._refuse(wrong.stream, wrong.fault)

    def data(self, number: int, piece: Data | None, size: int, last: bool) -> None:
        """Take a piece of a body, None if it is in its place; `size` counts its padding, too."""
        if self._blocks.begun is not None:
            raise _incomplete()
        self._window -= size
        if self._window < 0:
            raise ConnectionFault(Fault.FLOW_CONTROL_ERROR, "more than the window takes")
        if self._window < WINDOW // 2:
            self.sender.put(frames.window_update(0, WINDOW - self._window))
            self._window = WINDOW
        stream = self._streams.get(number)
        if stream is None:
            if not number or number > self._last:
                raise ConnectionFault(Fault.PROTOCOL_ERROR, "DATA for an idle stream")
            if number not in self._reset_here:
                self._refuse(number, Fault.STREAM_CLOSED)
            return
        if stream.ended:
            self._refuse(number, Fault.STREAM_CLOSED)
            return
        try:
            stream.receive(piece, size, last)
        except StreamFault as wrong:
            self._refuse(number, wrong.fault)

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "SETTINGS in a stream")
        if flags & frames.ACK:
            if payload:
                raise ConnectionFault(Fault.FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
            return
        self.settled = True
        settings = frames.read_settings(payload)
        if (window := settings.get(Setting.INITIAL_WINDOW_SIZE)) is not None:
            self.sender.set_initial(window, [stream.out for stream in self._streams.values()])
        if (size := settings.get(Setting.MAX_FRAME_SIZE)) is not None:
            self.sender.set_frame(size)
        self.sender.put(frames.frame(frames.SETTINGS, frames.ACK, 0))

    def _ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "PING in a stream")
        if len(payload) != 8:
            raise ConnectionFault(Fault.FRAME_SIZE_ERROR, "PING of a wrong size")
        if not flags & frames.ACK:
            self.sender.put(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif payload == DRAIN_PING and self.draining:
            self._refusing = True
            self.sender.put(frames.goaway(self._last, Fault.NO_ERROR))
            self._leave()

    def _credit(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(Fault.FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong size")
        size = int.from_bytes(payload, "big") & 0x7FFFFFFF
        if not size:
            raise StreamFault(number, Fault.PROTOCOL_ERROR)
        if not number:
            self.sender.credit(None, size)
        elif stream := self._streams.get(number):
            self.sender.credit(stream.out, size)
        elif number > self._last:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "WINDOW_UPDATE for an idle stream")

    def _reset(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(Fault.FRAME_SIZE_ERROR, "RST_STREAM of a wrong size")
        if not number or number > self._last:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "RST_STREAM for an idle stream")
        self._count_reset()
        self._reset_here.pop(number, None)  # From now on the client knows.
        if stream := self._streams.get(number):
            self._drop(stream)

    # Streams

    def _request(self, block: Block | None) -> None:
        if block is None:
            return
        number, ended, headers = block
        if number <= self._last:
            self._trailers(number, ended, headers)
            return
        self._last = number
        if headers is None:
            self._fail(number, Code.RESOURCE_EXHAUSTED, "The headers are too large.", ended)
            return
        self.calls += 1
        context = self._context
        if self._refusing or len(self._streams) >= MOST_STREAMS:
            raise StreamFault(number, Fault.REFUSED_STREAM)
        head = calls.head(headers)
        if head.malformed:
            raise StreamFault(number, Fault.PROTOCOL_ERROR)
        if head.refusal:
            self._close(number, calls.refusal(head.refusal), ended)
            return
        method = context.methods.get(head.path)
        if method is None:
            path = head.path.decode("utf-8", "replace")
            self._fail(number, Code.UNIMPLEMENTED, f"There is no method {path}.", ended)
            return
        refused = context.access.refusal(method.right, self._peer.owner, head.authorization)
        if refused is None and context.streams >= context.limits.streams:
            refused = _too_many()
        if refused is not None:
            self._fail(number, refused.code, refused.message, ended)
            return
        if head.timeout is not None and head.timeout <= 0:
            self._fail(number, Code.DEADLINE_EXCEEDED, "Deadline Exceeded", ended)
            return
        deadline = None if head.timeout is None else time.monotonic() + head.timeout
        stream = Stream(
            number, head, method, self.sender, context.budget, deadline, context.largest, self._peer
        )
        self._streams[number] = stream
        context.streams += 1
        if ended:
            stream.receive(b"", 0, True)

    def _trailers(self, number: int, ended: bool, headers: hpack.Headers | None) -> None:
        """Headers after the body: nothing in them is ours, but they may end the stream."""
        stream = self._streams.get(number)
        if stream is None:
            if number not in self._reset_here:
                raise ConnectionFault(Fault.STREAM_CLOSED, "HEADERS for a closed stream")
            return
        if stream.ended:
            raise StreamFault(number, Fault.STREAM_CLOSED)
        if not ended or headers is None or not calls.are_trailers(headers):
            raise StreamFault(number, Fault.PROTOCOL_ERROR)
        stream.receive(b"", 0, True)

    def _fail(self, number: int, code: int, text: str, ended: bool) -> None:
        self._close(number, calls.failure(code, text), ended)

    def _close(self, number: int, block: bytes, ended: bool) -> None:
        """End a stream that was never taken up."""
        flags = frames.END_HEADERS | frames.END_STREAM
        self.sender.put(frames.frame(frames.HEADERS, flags, number, block))
        if not ended:
            self._send_reset(number, Fault.NO_ERROR)

    def _answered(self, number: int) -> None:
        """All of an answer has been sent."""
        stream = self._streams[number]
        if not stream.ended:
            # The client need not send the rest of what it asked.
            self._send_reset(number, Fault.NO_ERROR)
        self._drop(stream)

    def _count_reset(self) -> None:
        """Bound the calls that are begun for nothing, whoever gives them up."""
        now = self._loop.time()
        if now - self._resets_since > 1.0:
            self._resets, self._resets_since = 0, now
        self._resets += 1
        if self._resets > MOST_RESETS:
            raise ConnectionFault(Fault.ENHANCE_YOUR_CALM, "too many calls are given up")

    def _send_reset(self, number: int, fault: Fault) -> None:
        self.sender.put(frames.reset(number, fault))
        self._reset_here[number] = None
        if len(self._reset_here) > 2 * MOST_STREAMS:
            del self._reset_here[next(iter(self._reset_here))]

    def _refuse(self, number: int, fault: Fault) -> None:
        self._count_reset()
        self._send_reset(number, fault)
        if stream := self._streams.get(number):
            self._drop(stream)

    def _drop(self, stream: Stream) -> None:
        if self._streams.pop(stream.out.number, None) is not None:
            self._context.streams -= 1
        stream.drop()
        if self.draining:
            self._leave()

    def _leave(self) -> None:
        if self._refusing and not self._streams and not self._over:
            self.sender.flush()
            self._transport.close()


def _too_many() -> ServingError:
    return ServingError(
        "The server has too many calls under way. Try again later.", Code.RESOURCE_EXHAUSTED
    )


def _incomplete() -> ConnectionFault:
    return ConnectionFault(Fault.PROTOCOL_ERROR, "headers are not complete")
