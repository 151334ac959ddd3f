"""What is measured: a model on the disk in an engine of its own, or one that is served.

Owns reading what the user names, and everything that has to be checked before the first call.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from sublet.channel import tensors
from sublet.channel.async_client import AsyncClient
from sublet.channel.client_protocol import Answer
from sublet.channel.codes import Code
from sublet.engine.savedmodel_proto import Signature
from sublet.engine.signatures import batchable
from sublet.errors import BadRequest, ServingError
from sublet.home import Home
from sublet.serving.client.call_arguments import Signatures
from sublet.serving.client.connect import connect
from sublet.serving.client.engine import Engine
from sublet.serving.control import model_directories
from sublet.tools.loadtest import inputs
from sublet.tools.loadtest.inputs import Arrays
from sublet.tools.loadtest.load import Transport

if TYPE_CHECKING:
    from sublet.tools.loadtest.http import HttpTarget
    from sublet.tools.loadtest.rpc import GrpcTarget


class ChannelTransport:
    """Through shared memory and a socket to an engine of this user."""

    def __init__(
        self,
        client: AsyncClient,
        model: str,
        version: int,
        signature: str,
        inputs: Sequence[Arrays],
        rows: int,
    ) -> None:
        self.rows = rows
        self._client = client
        self._inputs = itertools.cycle(inputs)
        self._route = model, version, signature

    async def ready(self, concurrency: int) -> None:
        """Nothing is needed."""

    def call(self) -> "asyncio.Future[Answer]":
        return self._client.call(*self._route, next(self._inputs))

    async def close(self) -> None:
        self._client.close()


async def served(name: str, version: int | None) -> tuple[AsyncClient, int, Signatures]:
    """A client to the engine that serves this model. Raises ServingError if none does."""
    model = connect(name, version)
    found, number = model.signatures, model.version
    model.close()
    for path in (Home.find().path / "engines").glob("*.sock"):
        with contextlib.suppress(ServingError):
            client = await AsyncClient.open(str(path))
            answer: Any = await client.ask({"ask": "models"})
            if any((one["model"], one["version"]) == (name, number) for one in answer):
                return client, number, found
            client.close()
    raise ServingError(f"The engine that served {name!r} has just ended.", Code.UNAVAILABLE)


NAME = "sublet-bench"
"""Of a model in an engine of its own: not one that somebody else could mean."""


class Wanted(Struct, frozen=True):
    """What the user says about the calls."""

    signature: str | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    rows: int | None = None
    data: Path | None = None


class LocalModel(Struct, frozen=True):
    """A version of a model on the disk."""

    path: Path
    version: int

    @property
    def name(self) -> str:
        """`models/a/3`, `models/a` and `models/a.keras` are all of a model named a."""
        path = self.path.absolute()
        return path.parent.name if path.name.isdecimal() else path.name.removesuffix(".keras")


class Subject(Struct, frozen=True):
    """A model, ready to be called."""

    about: str  # In one line, for people.
    model: str
    version: int | None
    signature: str
    inputs: Mapping[str, str]  # dtype and shape of each, as they are sent.
    batchable: bool
    transport: Transport


def locate(model: str, version: int | None) -> LocalModel | None:
    """Where a model lies; None if the word is not a path, but may be the name of a served model."""
    path = Path(model)
    if model_directories.is_model(path):
        number = int(path.name) if path.is_dir() and path.name.isdecimal() else 1
        if version not in (None, number):
            raise BadRequest(f"{model} is version {number}, not {version}.", "Leave --version out.")
        return LocalModel(path, number)
    if model_directories.has_versions(path):
        found = model_directories.look(model)
        number = max(found) if version is None else version
        if number not in found:
            known = ", ".join(map(str, sorted(found)))
            raise BadRequest(f"{model} has no version {number}.", f"It has: {known}.")
        return LocalModel(Path(found[number].path), number)
    if "/" in model or model.endswith(".keras") or path.is_file():
        missing = "there is no such file or directory" if not path.exists() else "it is no model"
        raise BadRequest(
            f"{model}: {missing}.",
            "Name a SavedModel, a .keras file, a directory of versions, or a model that is served.",
        )
    return None


async def own(engine: Engine, local: LocalModel, wanted: Wanted) -> Subject:
    """A model that gets an engine of its own."""
    client = await AsyncClient.open(engine.worker.path)
    answer = await client.ask({"ask": "describe", "model": NAME, "version": local.version})
    found = Signatures.read(answer["signatures"])
    about = f"{local.name}, version {local.version}, in an engine of its own"
    return _through_channel(client, NAME, local.version, found, wanted, about)


async def running(name: str, version: int | None, wanted: Wanted) -> Subject:
    """A model that is served by this user on this machine."""
    client, number, found = await served(name, version)
    about = f"{name}, version {number}, as it is served, through the channel"
    return _through_channel(client, name, number, found, wanted, about)


async def over_rest(
    target: "HttpTarget", name: str, version: int | None, wanted: Wanted
) -> Subject:
    """A model of a server of any make, through REST."""
    from sublet.tools.loadtest.http import RestTransport

    chosen, signature, made, rows = _prepared(await target.describe(), wanted)
    transport = RestTransport(target, chosen, signature, made, rows)
    about = f"{name} at {target.url}, through REST"
    return _subject(about, name, version, chosen, signature, made, transport)


async def over_grpc(
    target: "GrpcTarget", name: str, version: int | None, wanted: Wanted
) -> Subject:
    from sublet.tools.loadtest.rpc import GrpcTransport

    try:
        chosen, signature, made, rows = _prepared(await target.describe(), wanted)
    except BaseException:
        await target.close()
        raise
    transport = GrpcTransport(target, chosen, made, rows)
    about = f"{name} at {target.address}, through gRPC"
    return _subject(about, name, version, chosen, signature, made, transport)


def _through_channel(
    client: AsyncClient, name: str, version: int, found: Signatures, wanted: Wanted, about: str
) -> Subject:
    try:
        chosen, signature, made, rows = _prepared(found, wanted)
    except BaseException:
        client.close()
        raise
    transport = ChannelTransport(client, name, version, chosen, made, rows)
    return _subject(about, name, version, chosen, signature, made, transport)


def _prepared(found: Signatures, wanted: Wanted) -> tuple[str, Signature, list[Arrays], int]:
    """The signature that is called, what with, and the rows of a call."""
    name = found.find(wanted.signature)
    signature = found.all[name]
    if wanted.data is None:
        made = inputs.make(signature, wanted.shapes, wanted.rows)
    elif wanted.shapes:
        raise BadRequest("Both --data and --shape are given.", "The file has the shapes.")
    else:
        made = inputs.read(wanted.data, signature, wanted.rows)
    return name, signature, made, inputs.rows_of(made[0], signature)


def _subject(
    about: str,
    name: str,
    version: int | None,
    chosen: str,
    signature: Signature,
    made: list[Arrays],
    transport: Transport,
) -> Subject:
    sent = {
        key: f"{tensors.NAMES[tensors.number_of(array.dtype)]} {inputs.shown(array.shape)}"
        for key, array in made[0].items()
    }
    return Subject(about, name, version, chosen, sent, batchable(signature), transport)
