"""One client's HTTP/2 connection: the transport's side of it.

Owns where the bytes go that come in, and how long a client may take to say who it is, or to read
why it is left. What they mean is the conversation's.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from sublet.serving.grpc.calls import Methods
from sublet.serving.grpc.conversation import Conversation
from sublet.serving.grpc.frames import ConnectionFault
from sublet.serving.grpc.incoming import LARGE
from sublet.serving.grpc.reading import NotHttp2, Reader
from sublet.serving.room import Room

GREETING_TIME = 20.0
"""Seconds in which a client must say that it speaks HTTP/2."""
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
        self._direct = False
        """Whether what is read next goes to where it stays."""
        self._broken = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A uvloop transport is one in all but its class.
        self._transport = cast(asyncio.Transport, transport)
        self._conversation = Conversation(
            self._transport, self._loop, self._methods, self._room, self._limit
        )
        self._reader = Reader(self._greet, self._conversation.frame, self._conversation.data)
        self._greeting = self._loop.call_later(GREETING_TIME, transport.close)
        self._made(self)

    def connection_lost(self, wrong: Exception | None) -> None:
        self._broken = True
        self._greeting.cancel()
        self._conversation.end()
        self._lost(self)

    def pause_writing(self) -> None:
        # Who does not read answers is not read either, so that they do not pile up here.
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def get_buffer(self, hint: int) -> memoryview:
        number, missing = self._reader.inside
        if missing >= DIRECT:
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
            self._broken = True
            self._transport.write(_NOT_HTTP2)
            self._transport.close()
        except ConnectionFault as wrong:
            self._broken = True
            self._conversation.end(wrong)
            self._transport.close()
            # Who does not even read the reason must not keep us.
            self._loop.call_later(LINGER, self._transport.abort)
        else:
            self._conversation.sender.flush()

    @property
    def reading(self) -> bool:
        """Whether the client is heard; not while it does not read answers."""
        return self._transport.is_reading()

    def drain(self) -> None:
        """Take no new calls, and close when those under way are answered."""
        if self._broken:
            return
        if self._conversation.settled:
            self._conversation.drain()
        else:
            self._transport.close()

    def abort(self) -> None:
        """End at once."""
        self._transport.abort()

    def _greet(self) -> None:
        self._greeting.cancel()
        self._conversation.greet()
