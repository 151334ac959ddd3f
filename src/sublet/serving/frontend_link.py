"""What the server and a front end say to each other: questions and answers over one
socket.

Requests and tensors never come this way.
"""

import asyncio
import itertools
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

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
_ENCODER = msgspec.msgpack.Encoder()


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
    shared_memory: bool = False


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
    """The answer to an order that was carried out."""


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


class ChangeModel(Struct, frozen=True, tag="change model"):
    """To the server: a client wants one model to be served, or not any more. Answered by
    `Reloaded`."""

    name: str
    load: bool


class Reloaded(Struct, frozen=True, tag="reloaded"):
    """How a reload, or the change of a model, went."""

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
    | ChangeModel
    | Reloaded
    | AskExposition
    | Exposition
    | AskStatistics
    | Statistics
)


class _Envelope(Struct, frozen=True):
    number: int  # Of a question; that of its answer is the same, below zero.
    message: Message


class Link:
    """One end of the socket. `answer` answers what the other end asks; `lost` is called once, when
    the other end has gone."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answer: Callable[[Message], Awaitable[Message]],
        lost: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._answer = answer
        self._lost = lost
        self._gone = False
        self._numbers = itertools.count(1)
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def over(
        cls,
        sock: socket.socket,
        answer: Callable[[Message], Awaitable[Message]],
        lost: Callable[[], None],
    ) -> "Link":
        """A link over a connected socket, which is its from now on."""
        return cls(*await asyncio.open_unix_connection(sock=sock), answer, lost)

    async def ask(self, question: Message) -> Any:
        """The answer of the other end. Raises ServingError if it goes before it has answered."""
        if self._gone:
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
        self._writer.close()

    async def _listen(self) -> None:
        decoder = msgspec.msgpack.Decoder(_Envelope)
        try:
            while True:
                (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                if length > _LARGEST:
                    break
                self._hear(decoder.decode(await self._reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # It has gone.
        finally:
            self._gone = True
            self._writer.close()
            for future in self._questions.values():
                if not future.done():
                    future.set_exception(_ending())
            self._lost()

    def _hear(self, envelope: _Envelope) -> None:
        if envelope.number > 0:
            task = asyncio.create_task(self._reply(envelope))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif (future := self._questions.get(-envelope.number)) is not None and not future.done():
            future.set_result(envelope.message)

    async def _reply(self, question: _Envelope) -> None:
        self._send(-question.number, await self._answer(question.message))

    def _send(self, number: int, message: Message) -> None:
        if not self._gone:
            data = _ENCODER.encode(_Envelope(number, message))
            self._writer.write(_LENGTH.pack(len(data)) + data)


def _ending() -> ServingError:
    return ServingError("The server is ending.", Code.UNAVAILABLE)
