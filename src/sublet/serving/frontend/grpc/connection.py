"""One client's HTTP/2 connection: the transport's side of it.

Owns where the bytes go that come in, and how long a client may take: to say who it is, to complete
a frame, to read its answers, or to say nothing. What the bytes mean is the conversation's.
"""

import asyncio
from typing import TYPE_CHECKING, cast

from sublet.serving.frontend.grpc import frames
from sublet.serving.frontend.grpc.conversation import Conversation
from sublet.serving.frontend.grpc.frames import ConnectionFault, Fault
from sublet.serving.frontend.grpc.incoming import LARGE
from sublet.serving.frontend.grpc.reading import NotHttp2, Reader
from sublet.serving.frontend.peer import Peer
from sublet.serving.frontend.protocol_server import ClientConnection

if TYPE_CHECKING:
    from sublet.serving.frontend.grpc.server import GrpcServer

LINGER = 5.0
"""Seconds in which a client may read why its connection ends."""
BUFFER = 1 << 18
"""Bytes that are read at a time, unless they can be read to where they stay."""
DIRECT = 1 << 16
"""Bytes from which on that is worth a system call of its own."""

_ONLY_HTTP2 = b"This port speaks gRPC: HTTP/2 without TLS, and nothing else.\n"
_NOT_HTTP2 = (
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_ONLY_HTTP2), _ONLY_HTTP2)
)
# Without the settings that a server begins with: so a client counts it as a connection that has
# failed, and waits before it tries the next one.
_TOO_MANY = frames.goaway(
    0, Fault.ENHANCE_YOUR_CALM, "There are too many connections; try again later."
)


class Connection(ClientConnection, asyncio.BufferedProtocol):
    """Made by the server for each client."""

    def __init__(self, context: "GrpcServer", peer: Peer) -> None:
        super().__init__()
        self._context = context
        self._peer = peer
        self._buffer = context.buffer
        self._loop = asyncio.get_running_loop()
        self._direct = False
        """Whether what is read next goes to where it stays."""
        self._broken = False  # Whether nothing more is heard.
        self._waits_for: object = None
        """What that is: the same at two sweeps if the client has not gone on."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A uvloop transport is one in all but its class.
        self._transport = cast(asyncio.Transport, transport)
        self._conversation = Conversation(self._transport, self._loop, self._context, self._peer)
        self._reader = Reader(
            self._conversation.greet, self._conversation.frame, self._conversation.data
        )
        self._context.connections.add(self)
        if len(self._context.connections) > self._context.limits.connections:
            self._leave(_TOO_MANY)
        elif self._context.draining:
            self.drain()  # It was taken in just before.

    def connection_lost(self, wrong: Exception | None) -> None:
        self._broken = True
        self._conversation.end()
        self._context.connections.discard(self)

    def pause_writing(self) -> None:
        # Who does not read answers is not read either, so that they do not pile up here.
        super().pause_writing()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._clogged = False
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def get_buffer(self, hint: int) -> memoryview:
        number, missing = self._reader.inside
        if missing >= DIRECT and not self._broken:
            place = self._conversation.place(number)
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
            self._leave(_NOT_HTTP2)
        except ConnectionFault as wrong:
            self._fail(wrong)
        else:
            self._conversation.sender.flush()

    @property
    def reading(self) -> bool:
        """Whether the client is heard; not while it does not read answers."""
        return self._transport.is_reading()

    def sweep(self, now: float) -> None:
        """Cut off whoever is too slow, or silent for too long. Called about once per second."""
        if self._broken:
            return
        limits = self._context.limits
        if self._clogged:
            if self._reads_nothing(now, limits.slow):
                self.abort()
            return
        self._conversation.sweep(now)
        waits_for, patience = self._patience()
        if waits_for is None or waits_for != self._waits_for:
            self._waits_for, self._since = waits_for, now
        elif now - self._since > patience:
            self._wait_no_longer()

    def _patience(self) -> tuple[object, float]:
        """What the client has to do next, and how long it may take; None if it has nothing to."""
        talk, limits = self._conversation, self._context.limits
        if not talk.settled:
            return "greeting", limits.slow
        if self._reader.begun is not None:
            return ("frame", self._reader.begun), limits.slow
        if talk.block is not None:
            return ("headers", id(talk.block)), limits.slow
        if talk.busy:
            return None, 0.0
        if talk.draining:
            return "leaving", limits.linger
        return ("call", talk.calls), limits.silence(len(self._context.connections))

    def _wait_no_longer(self) -> None:
        talk = self._conversation
        if not talk.settled or talk.draining:
            self._transport.close()
        elif self._reader.begun is not None or talk.block is not None:
            self._fail(ConnectionFault(Fault.ENHANCE_YOUR_CALM, "the request came too slowly"))
        else:
            talk.drain()
            talk.sender.flush()

    def drain(self) -> None:
        """Take no new calls, and close when those under way are answered."""
        if self._broken:
            return
        if self._conversation.settled:
            self._conversation.drain()
        else:
            self._transport.close()

    def _fail(self, wrong: ConnectionFault) -> None:
        """The client broke the rules: say which, and hang up."""
        self._conversation.end(wrong)
        self._leave(b"")

    def _leave(self, last: bytes) -> None:
        self._broken = True
        if last:
            self._transport.write(last)
        self._transport.close()
        # Who does not even read the reason must not keep us.
        self._loop.call_later(LINGER, self._transport.abort)
