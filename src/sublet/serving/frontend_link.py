"""What the server and a front end say to each other: questions and answers over one
socket.

Requests and tensors never come this way.
"""

import asyncio
import contextlib
import itertools
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
from msgspec import Struct

from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.serving.access import Access
from sublet.serving.catalogue import Catalogue
from sublet.serving.metrics import Inferences, Tally
from sublet.serving.tls import Tls

_LENGTH = struct.Struct(">I")
_LARGEST = 256 << 20


class Opening(Struct, frozen=True, tag="opening"):
    """To a front end: its listening sockets, by number, and its limits. Answered by `Opened`."""

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


class Opened(Struct, frozen=True, tag="opened"):
    """The front end takes requests, or cannot begin."""

    error: str = ""


class CatalogueUpdate(Struct, frozen=True, tag="catalogue"):
    """To a front end: what is served from now on. Answered by `Done`, when no request goes to what
    an older update said any more."""

    catalogue: Catalogue
    names: dict[str, str] = {}  # Directories of the server, and what clients call them.
    silent: tuple[str, ...] = ()  # The sockets of engines that give no answers.


class Done(Struct, frozen=True, tag="done"):
    """It was done."""


class AskTally(Struct, frozen=True, tag="ask tally"):
    """To a front end: give a sign of life, and say what you have counted. Answered by `Counted`."""


class Drain(Struct, frozen=True, tag="drain"):
    """To a front end: take no more connections, answer what has come, and end. Answered by
    `Counted`."""

    seconds: float


class Counted(Struct, frozen=True, tag="counted"):
    """All that a front end has counted so far."""

    tally: Tally


class Reload(Struct, frozen=True, tag="reload"):
    """To the server: a client wants other models to be served. Answered by `Reloaded`."""

    config: bytes


class Reloaded(Struct, frozen=True, tag="reloaded"):
    """How the reload went."""

    code: int = 0
    error: str = ""


class AskExposition(Struct, frozen=True, tag="ask exposition"):
    """To the server: a client wants to see the metrics. Answered by `Exposition`."""


class Exposition(Struct, frozen=True, tag="exposition"):
    """All metrics, as text."""

    text: str


class AskStatistics(Struct, frozen=True, tag="ask statistics"):
    """To the server: a client wants to see what became of the calls of all front ends. Answered by
    `Statistics`."""


class Statistics(Struct, frozen=True, tag="statistics"):
    """What became of the calls of all front ends."""

    inferences: dict[tuple[str, int], Inferences]


Message = (
    Opening
    | Opened
    | CatalogueUpdate
    | Done
    | AskTally
    | Drain
    | Counted
    | Reload
    | Reloaded
    | AskExposition
    | Exposition
    | AskStatistics
    | Statistics
)


class _Envelope(Struct, frozen=True):
    number: int  # Of a question; that of its answer is the same, below zero.
    message: Message


class Link(asyncio.Protocol):
    """One end of the socket. `answer` answers what the other end asks; `lost` is called once, when
    the other end has gone."""

    def __init__(
        self, answer: Callable[[Message], Awaitable[Message]], lost: Callable[[], None]
    ) -> None:
        self._decoder = msgspec.msgpack.Decoder(_Envelope)
        self._encoder = msgspec.msgpack.Encoder()
        self._answer = answer
        self._lost = lost
        self._in = bytearray()
        self._transport: asyncio.Transport | None = None
        self._numbers = itertools.count(1)
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()

    @classmethod
    async def over(
        cls,
        sock: socket.socket,
        answer: Callable[[Message], Awaitable[Message]],
        lost: Callable[[], None],
    ) -> "Link":
        """A link over a connected socket, which is its from now on."""
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(lambda: cls(answer, lost), sock=sock)
        return link

    async def ask(self, question: Message) -> Any:
        """The answer of the other end. Raises ServingError if it goes before it has answered."""
        if self._transport is None:
            raise _ending()
        number = next(self._numbers)
        future = self._questions[number] = asyncio.get_running_loop().create_future()
        self._send(number, question)
        try:
            return await future
        finally:
            self._questions.pop(number, None)

    def close(self) -> None:
        """Hang up, after what was said."""
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
            envelope = self._decoder.decode(bytes(self._in[_LENGTH.size : end]))
            del self._in[:end]
            self._hear(envelope)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        for future in self._questions.values():
            if not future.done():
                future.set_exception(_ending())
        with contextlib.suppress(asyncio.CancelledError):
            self._lost()

    def _hear(self, envelope: _Envelope) -> None:
        if envelope.number > 0:
            task = asyncio.ensure_future(self._reply(envelope))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif (future := self._questions.get(-envelope.number)) is not None and not future.done():
            future.set_result(envelope.message)

    async def _reply(self, question: _Envelope) -> None:
        self._send(-question.number, await self._answer(question.message))

    def _send(self, number: int, message: Message) -> None:
        if self._transport is not None:
            data = self._encoder.encode(_Envelope(number, message))
            self._transport.write(_LENGTH.pack(len(data)) + data)


def _ending() -> ServingError:
    return ServingError("The server is ending.", Code.UNAVAILABLE)
