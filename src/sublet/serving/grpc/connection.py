"""One client's HTTP/2 connection: reads frames, keeps streams, answers each call.

It trusts nothing: what a client may hold is bounded by settings that it must keep to, and a client
that breaks the protocol loses the stream, or the connection if there is no other way.
"""

import asyncio
import time
from collections.abc import Callable
from typing import cast

from sublet.channel.codes import Code
from sublet.serving.grpc import calls, frames, hpack, streams
from sublet.serving.grpc.calls import Methods
from sublet.serving.grpc.frames import ConnectionFault, Fault, Setting, StreamFault
from sublet.serving.grpc.incoming import LARGE
from sublet.serving.grpc.reading import LARGEST_CONTROL, LARGEST_FRAME, Data, NotHttp2, Reader
from sublet.serving.grpc.sending import Sender
from sublet.serving.grpc.streams import Stream
from sublet.serving.room import Room

MOST_STREAMS = 2048
LARGEST_BLOCK = 4 * LARGEST_CONTROL
"""Bytes of headers in all their frames."""
WINDOW = 16 << 20
MOST_RESETS = 2000
"""Streams that may be given up within a second, by the client or for what it sent."""
GREETING_TIME = 20.0
"""Seconds in which a client must say that it speaks HTTP/2."""
LINGER = 5.0
"""Seconds in which a client may read why its connection ends."""
DRAIN_PING = b"draining"
BUFFER = 1 << 18
"""Bytes that are read at a time, unless they can be read to where they stay."""
DIRECT = 1 << 16
"""Bytes from which on that is worth a system call of its own."""

_ONLY_HTTP2 = b"This port speaks gRPC: HTTP/2 without TLS, and nothing else.\n"
_NOT_HTTP2 = (
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_ONLY_HTTP2), _ONLY_HTTP2)
)


class Connection(asyncio.BufferedProtocol):
    """Made by the server for each client.

    `buffer` is shared by all of a loop: what comes there is looked at at once.
    """

    def __init__(
        self,
        methods: Methods,
        room: Room,
        buffer: memoryview,
        limit: int,
        made: Callable[["Connection"], None],
        lost: Callable[["Connection"], None],
    ) -> None:
        self._methods = methods
        self._room = room
        self._buffer = buffer
        self._limit = limit
        self._made = made
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, Stream] = {}
        self._decoder = hpack.Decoder()
        self._reader = Reader(self._greet, self._frame, self._data)
        self._direct = False
        """Whether what is read next goes to where it stays."""
        self._settled = False
        self._block: tuple[int, int, bytearray] | None = None
        """Stream, flags and bytes of headers that are not complete."""
        self._last = 0
        self._window = WINDOW
        self._resets = 0
        self._resets_since = 0.0
        self._draining = False
        self._refusing = False
        self._broken = False

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A uvloop transport is one in all but its class.
        self._transport = cast(asyncio.Transport, transport)
        self._sender = Sender(self._transport, self._loop, self._ended)
        self._greeting = self._loop.call_later(GREETING_TIME, transport.close)
        self._made(self)

    def connection_lost(self, wrong: Exception | None) -> None:
        self._broken = True
        self._greeting.cancel()
        for stream in list(self._streams.values()):
            self._drop(stream)
        self._lost(self)

    def pause_writing(self) -> None:
        # Who does not read answers is not read either, so that they do not pile up here.
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def get_buffer(self, hint: int) -> memoryview:
        number, missing = self._reader.inside
        if missing >= DIRECT and (stream := self._streams.get(number)):
            place = stream.place()
            if place is not None and len(place) >= DIRECT:
                self._direct = True
                return place[:missing]
        self._direct = False
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        if self._broken:
            return
        try:
            if self._direct:
                self._reader.filled(size)
            else:
                came = self._buffer[:size]
                self._reader.feed(bytes(came) if size < LARGE else came)
        except NotHttp2:
            self._broken = True
            self._transport.write(_NOT_HTTP2)
            self._transport.close()
        except ConnectionFault as wrong:
            self._break(wrong)
        else:
            self._sender.flush()

    @property
    def reading(self) -> bool:
        """Whether the client is heard; not while it does not read answers."""
        return self._transport.is_reading()

    def drain(self) -> None:
        """Take no new calls, and close when those under way are answered.

        First a GOAWAY that refuses nothing; calls that the client sends before it hears of it are
        taken. Its answer to the ping shows that it has, and what comes later is refused.
        """
        if self._draining or self._broken:
            return
        self._draining = True
        if not self._settled:
            self._transport.close()
            return
        self._sender.put(frames.goaway(frames.LAST_STREAM, Fault.NO_ERROR))
        self._sender.put(frames.frame(frames.PING, 0, 0, DRAIN_PING))

    def abort(self) -> None:
        """End at once."""
        self._transport.abort()

    def _break(self, wrong: ConnectionFault) -> None:
        self._broken = True
        self._sender.put(frames.goaway(self._last, wrong.fault, str(wrong)))
        self._sender.flush()
        for stream in list(self._streams.values()):
            self._drop(stream)
        self._transport.close()
        # Who does not even read the reason must not keep us.
        self._loop.call_later(LINGER, self._transport.abort)

    # Frames

    def _greet(self) -> None:
        self._greeting.cancel()
        self._sender.put(
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

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if not self._settled and kind != frames.SETTINGS:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "SETTINGS must come first")
        if self._block is not None and kind != frames.CONTINUATION:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "headers are not complete")
        try:
            match kind:
                case frames.DATA:
                    size = len(payload)
                    if flags & frames.PADDED:
                        payload = _unpadded(payload, 0)
                    self._data(number, payload, size, bool(flags & frames.END_STREAM))
                case frames.HEADERS:
                    self._headers(flags, number, payload)
                case frames.CONTINUATION:
                    self._continuation(flags, number, payload)
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

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "SETTINGS in a stream")
        if len(payload) % 6 or (flags & frames.ACK and payload):
            raise ConnectionFault(Fault.FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
        if flags & frames.ACK:
            return
        self._settled = True
        for at in range(0, len(payload), 6):
            key = int.from_bytes(payload[at : at + 2], "big")
            value = int.from_bytes(payload[at + 2 : at + 6], "big")
            if key == Setting.INITIAL_WINDOW_SIZE:
                if value > frames.LARGEST_WINDOW:
                    raise ConnectionFault(Fault.FLOW_CONTROL_ERROR, "window too large")
                self._sender.set_initial(value, [s.out for s in self._streams.values()])
            elif key == Setting.MAX_FRAME_SIZE:
                if not 16384 <= value < 1 << 24:
                    raise ConnectionFault(Fault.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of range")
                self._sender.set_frame(value)
            elif key == Setting.ENABLE_PUSH and value > 1:
                raise ConnectionFault(Fault.PROTOCOL_ERROR, "ENABLE_PUSH is no truth value")
        self._sender.put(frames.frame(frames.SETTINGS, frames.ACK, 0))

    def _ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "PING in a stream")
        if len(payload) != 8:
            raise ConnectionFault(Fault.FRAME_SIZE_ERROR, "PING of a wrong size")
        if not flags & frames.ACK:
            self._sender.put(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif payload == DRAIN_PING and self._draining:
            self._refusing = True
            self._sender.put(frames.goaway(self._last, Fault.NO_ERROR))
            self._leave()

    def _credit(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(Fault.FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong size")
        size = int.from_bytes(payload, "big") & 0x7FFFFFFF
        if not size:
            raise StreamFault(number, Fault.PROTOCOL_ERROR)
        if not number:
            self._sender.credit(None, size)
        elif stream := self._streams.get(number):
            self._sender.credit(stream.out, size)
        elif number > self._last:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "WINDOW_UPDATE for an idle stream")

    def _reset(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(Fault.FRAME_SIZE_ERROR, "RST_STREAM of a wrong size")
        if not number or number > self._last:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "RST_STREAM for an idle stream")
        self._count_reset()
        if stream := self._streams.get(number):
            self._drop(stream)

    # Requests

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        if not number & 1:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "a client's streams are odd")
        if flags & (frames.PADDED | frames.PRIORITIZED):
            skipped = 5 if flags & frames.PRIORITIZED else 0
            if flags & frames.PADDED:
                payload = _unpadded(payload, skipped)
            elif len(payload) < skipped:
                raise ConnectionFault(Fault.FRAME_SIZE_ERROR, "HEADERS of a wrong size")
            else:
                payload = payload[skipped:]
        if flags & frames.END_HEADERS:
            self._request(flags, number, payload)
        else:
            self._block = (number, flags, bytearray(payload))

    def _continuation(self, flags: int, number: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != number:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "CONTINUATION of nothing")
        _, first, block = self._block
        block += payload
        if len(block) > LARGEST_BLOCK or not (payload or flags & frames.END_HEADERS):
            raise ConnectionFault(Fault.ENHANCE_YOUR_CALM, "headers without end")
        if flags & frames.END_HEADERS:
            self._block = None
            self._request(first, number, bytes(block))

    def _request(self, flags: int, number: int, block: bytes) -> None:
        try:
            # Read in any case: the next block builds on this one's changes to the table.
            headers = self._decoder.decode(block)
        except hpack.TooLong:
            headers = None
        except hpack.Damaged as wrong:
            raise ConnectionFault(Fault.COMPRESSION_ERROR, str(wrong)) from None
        ended = bool(flags & frames.END_STREAM)
        if number <= self._last:
            self._trailers(number, ended)
            return
        self._last = number
        if headers is None:
            self._fail(number, Code.RESOURCE_EXHAUSTED, "The headers are too large.", ended)
            return
        if self._refusing or len(self._streams) >= MOST_STREAMS:
            raise StreamFault(number, Fault.REFUSED_STREAM)
        head = calls.head(headers)
        if head.malformed:
            raise StreamFault(number, Fault.PROTOCOL_ERROR)
        if head.refusal:
            self._close(number, calls.refusal(head.refusal), ended)
            return
        method = self._methods.get(head.path)
        if method is None:
            path = head.path.decode("utf-8", "replace")
            self._fail(number, Code.UNIMPLEMENTED, f"There is no method {path}.", ended)
            return
        if head.timeout is not None and head.timeout <= 0:
            self._fail(number, Code.DEADLINE_EXCEEDED, "Deadline Exceeded", ended)
            return
        deadline = None if head.timeout is None else time.monotonic() + head.timeout
        stream = Stream(number, head, method, self._sender, self._room, deadline, self._limit)
        self._streams[number] = stream
        if ended:
            stream.receive(b"", 0, True)

    def _trailers(self, number: int, ended: bool) -> None:
        """Headers after the body: nothing in them is ours, but they may end the stream."""
        stream = self._streams.get(number)
        if stream is None:
            return  # we have ended it before the client has
        if stream.ended or not ended:
            raise StreamFault(number, Fault.STREAM_CLOSED)
        stream.receive(b"", 0, True)

    def _data(self, number: int, piece: Data | None, size: int, last: bool) -> None:
        """Take a piece of a body, None if it is in its place; `size` counts its padding, too."""
        if self._block is not None:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "headers are not complete")
        self._window -= size
        if self._window < 0:
            raise ConnectionFault(Fault.FLOW_CONTROL_ERROR, "more than the window takes")
        if self._window < WINDOW // 2:
            self._sender.put(frames.window_update(0, WINDOW - self._window))
            self._window = WINDOW
        stream = self._streams.get(number)
        if stream is None:
            if not number or number > self._last:
                raise ConnectionFault(Fault.PROTOCOL_ERROR, "DATA for an idle stream")
            return  # we have ended it before the client has
        if stream.ended:
            self._refuse(number, Fault.STREAM_CLOSED)
            return
        try:
            stream.receive(piece, size, last)
        except StreamFault as wrong:
            self._refuse(number, wrong.fault)

    # Ends

    def _fail(self, number: int, code: int, text: str, ended: bool) -> None:
        self._close(number, calls.failure(code, text), ended)

    def _close(self, number: int, block: bytes, ended: bool) -> None:
        """End a stream that was never taken up."""
        flags = frames.END_HEADERS | frames.END_STREAM
        self._sender.put(frames.frame(frames.HEADERS, flags, number, block))
        if not ended:
            self._sender.put(frames.reset(number, Fault.NO_ERROR))

    def _ended(self, number: int) -> None:
        """All of an answer has been sent."""
        stream = self._streams[number]
        if not stream.ended:
            # The client need not send the rest of what it asked.
            self._sender.put(frames.reset(number, Fault.NO_ERROR))
        self._drop(stream)

    def _count_reset(self) -> None:
        """Bound the calls that are begun for nothing, whoever gives them up."""
        now = self._loop.time()
        if now - self._resets_since > 1.0:
            self._resets, self._resets_since = 0, now
        self._resets += 1
        if self._resets > MOST_RESETS:
            raise ConnectionFault(Fault.ENHANCE_YOUR_CALM, "too many calls are given up")

    def _refuse(self, number: int, fault: Fault) -> None:
        self._count_reset()
        self._sender.put(frames.reset(number, fault))
        if stream := self._streams.get(number):
            self._drop(stream)

    def _drop(self, stream: Stream) -> None:
        self._streams.pop(stream.out.number, None)
        stream.drop()
        if self._draining:
            self._leave()

    def _leave(self) -> None:
        if self._refusing and not self._streams and not self._broken:
            self._sender.flush()
            self._transport.close()


def _unpadded(payload: bytes, skipped: int) -> bytes:
    """A payload without its padding, and without `skipped` bytes before it."""
    if not payload or payload[0] + 1 + skipped > len(payload):
        raise ConnectionFault(Fault.PROTOCOL_ERROR, "more padding than there is room")
    return payload[1 + skipped : len(payload) - payload[0]]
