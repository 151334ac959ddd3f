"""What the server and a front end say to each other: messages over one socket, and nothing else.

Requests and tensors never come this way.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Any, cast

import msgspec
from msgspec import Struct

from sublet.serving.access import Access
from sublet.serving.catalogue import Catalogue
from sublet.serving.metrics import Inferences, Tally
from sublet.serving.tls import Tls

_LENGTH = struct.Struct(">I")
_LARGEST = 256 << 20


class Opening(Struct, frozen=True, tag="opening"):
    """To a front end, first: its listening sockets, by number, and its limits."""

    rest: tuple[int, ...] = ()
    grpc: tuple[int, ...] = ()
    rest_timeout: float = 30.0
    metrics_path: str | None = None
    max_request: int | None = None
    frontends: int = 1  # How many share what all clients together may take.
    cors: bool = False
    tls: Tls | None = None  # For gRPC.
    rest_tls: Tls | None = None
    access: Access = Access()


class CatalogueUpdate(Struct, frozen=True, tag="news"):
    """To a front end: what is served from now on."""

    number: int
    catalogue: Catalogue
    names: dict[str, str] = {}  # Directories of the server, and what clients call them.
    silent: tuple[str, ...] = ()  # The sockets of engines that give no answers.


class Drain(Struct, frozen=True, tag="drain"):
    """To a front end: take no more connections, answer what has come, and end."""

    seconds: float


class Ping(Struct, frozen=True, tag="ping"):
    """To a front end: give a sign of life."""


class AskTally(Struct, frozen=True, tag="ask tally"):
    """To a front end: what it has counted."""

    number: int


class Reloaded(Struct, frozen=True, tag="reloaded"):
    """To a front end: how its `Reload` went."""

    number: int
    code: int = 0
    error: str = ""


class Exposition(Struct, frozen=True, tag="exposition"):
    """To a front end: all metrics, as text."""

    number: int
    text: str


class Statistics(Struct, frozen=True, tag="statistics"):
    """To a front end: what became of the calls of all front ends."""

    number: int
    inferences: dict[tuple[str, int], Inferences]


ToFrontEnd = (
    Opening | CatalogueUpdate | Drain | Ping | AskTally | Reloaded | Exposition | Statistics
)


class Ready(Struct, frozen=True, tag="ready"):
    """From a front end: it takes requests."""


class Failed(Struct, frozen=True, tag="failed"):
    """From a front end: why it cannot begin."""

    error: str


class Acknowledged(Struct, frozen=True, tag="heard"):
    """From a front end: no request goes to what an older `CatalogueUpdate` said any more."""

    number: int


class Pong(Struct, frozen=True, tag="pong"):
    """From a front end: a sign of life."""


class Counted(Struct, frozen=True, tag="counted"):
    """From a front end: all that it has counted so far; number 0 if it was not asked."""

    number: int
    tally: Tally


class Reload(Struct, frozen=True, tag="reload"):
    """From a front end: a client wants other models to be served."""

    number: int
    config: bytes


class AskExposition(Struct, frozen=True, tag="ask exposition"):
    """From a front end: a client wants to see the metrics."""

    number: int


class AskStatistics(Struct, frozen=True, tag="ask statistics"):
    """From a front end: a client wants to see what became of the calls of all front ends."""

    number: int


FromFrontEnd = (
    Ready | Failed | Acknowledged | Pong | Counted | Reload | AskExposition | AskStatistics
)
Asked = Reload | AskExposition | AskStatistics  # What only the server can answer.
Answered = Reloaded | Exposition | Statistics


class Link(asyncio.Protocol):
    """One end of the socket. `heard` gets each message; `lost` is called once, at the end."""

    def __init__(
        self, kind: object, heard: Callable[[Any], None], lost: Callable[[], None]
    ) -> None:
        self._decoder = msgspec.msgpack.Decoder(cast(Any, kind))
        self._encoder = msgspec.msgpack.Encoder()
        self._heard = heard
        self._lost = lost
        self._in = bytearray()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def over(
        cls,
        sock: socket.socket,
        kind: object,
        heard: Callable[[Any], None],
        lost: Callable[[], None],
    ) -> "Link":
        """A link over a connected socket, which is its from now on."""
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(lambda: cls(kind, heard, lost), sock=sock)
        return link

    def send(self, message: ToFrontEnd | FromFrontEnd) -> None:
        """Say something; to somebody who has gone it is lost."""
        if self._transport is None:
            return
        data = self._encoder.encode(message)
        self._transport.write(_LENGTH.pack(len(data)) + data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._in += data
        while len(self._in) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._in)
            end = _LENGTH.size + length
            if length > _LARGEST:
                self.close()
                return
            if len(self._in) < end:
                return
            message = bytes(self._in[_LENGTH.size : end])
            del self._in[:end]
            self._heard(self._decoder.decode(message))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        with contextlib.suppress(asyncio.CancelledError):
            self._lost()
