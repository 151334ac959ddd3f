"""What is measured: a model on the disk in an engine of its own, or one that is served.

Owns reading what the user names, and everything that has to be checked before the first call.
"""

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field

from sublet.channel import tensors
from sublet.channel.async_client import AsyncClient
from sublet.channel.client_protocol import Answer
from sublet.engine.savedmodel_proto import Signature
from sublet.engine.signatures import batchable
from sublet.errors import BadRequest
from sublet.serving.client.call_arguments import Signatures
from sublet.serving.client.connect import find
from sublet.serving.client.engine import Engine
from sublet.serving.control import model_directories
from sublet.tools.loadtest import inputs
from sublet.tools.loadtest.inputs import Arrays
from sublet.tools.loadtest.load import Caller


class Transport(Caller, Protocol):
    """A way to a model: `describe` first, then `prepare`, then calls."""

    about: str  # The model and the way to it, in one line, for people.

    async def describe(self) -> Signatures:
        """The signatures of the model. Raises ServingError."""

    def prepare(self, name: str, signature: Signature, inputs: Sequence[Arrays], rows: int) -> None:
        """Make the calls ready: of this signature, with these inputs in turn."""

    async def close(self) -> None:
        """Hang up, after the last call."""


class ChannelTransport:
    """Calls one model through shared memory and a socket to an engine of this user."""

    rows = 1

    def __init__(
        self, client: AsyncClient, model: str, version: int, found: Signatures, about: str
    ) -> None:
        self.about = about
        self._client = client
        self._model, self._version = model, version
        self._signatures = found
        self._signature = ""
        self._inputs: Iterator[Arrays] = iter(())

    async def describe(self) -> Signatures:
        return self._signatures

    def prepare(self, name: str, signature: Signature, inputs: Sequence[Arrays], rows: int) -> None:
        self._signature, self._inputs, self.rows = name, itertools.cycle(inputs), rows

    async def ready(self, concurrency: int) -> None:
        """Nothing has to be opened before calls."""

    def call(self) -> "asyncio.Future[Answer]":
        return self._client.call(self._model, self._version, self._signature, next(self._inputs))

    async def close(self) -> None:
        self._client.close()


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
        return model_directories.name_of(self.path)


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
    transport = ChannelTransport(client, NAME, local.version, found, about)
    return await opened(transport, NAME, local.version, wanted)


async def running(name: str, version: int | None, wanted: Wanted) -> Subject:
    """A model that is served by this user on this machine."""
    client, path, number, found = find(name, version)
    client.close()
    about = f"{name}, version {number}, as it is served, through the channel"
    transport = ChannelTransport(await AsyncClient.open(str(path)), name, number, found, about)
    return await opened(transport, name, number, wanted)


async def opened(transport: Transport, name: str, version: int | None, wanted: Wanted) -> Subject:
    """A model behind a transport, which is closed if it cannot be called like this."""
    try:
        found = await transport.describe()
        chosen = found.find(wanted.signature)
        signature = found.all[chosen]
        if wanted.data is None:
            made = inputs.make(signature, wanted.shapes, wanted.rows)
        elif wanted.shapes:
            raise BadRequest("Both --data and --shape are given.", "The file has the shapes.")
        else:
            made = inputs.read(wanted.data, signature, wanted.rows)
        transport.prepare(chosen, signature, made, inputs.rows_of(made[0], signature))
    except BaseException:
        await transport.close()
        raise
    sent = {
        key: f"{tensors.NAMES[tensors.number_of(array.dtype)]} {inputs.shown(array.shape)}"
        for key, array in made[0].items()
    }
    return Subject(transport.about, name, version, chosen, sent, batchable(signature), transport)
