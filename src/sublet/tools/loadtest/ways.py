"""The channel as a way to a model, and finding the engine that serves one.

Its twins are `http` and `rpc`, for servers of any make.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

from sublet.channel.answer import Answer
from sublet.channel.async_client import AsyncClient
from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.home import Home
from sublet.serving.client.call_arguments import Signatures
from sublet.serving.client.connect import connect
from sublet.tools.loadtest.inputs import Arrays


class Channel:
    """Through shared memory and a socket to an engine of this user."""

    def __init__(
        self,
        port: AsyncClient,
        model: str,
        version: int,
        signature: str,
        inputs: Sequence[Arrays],
        rows: int,
    ) -> None:
        self.rows = rows
        self._port = port
        self._inputs = itertools.cycle(inputs)
        self._route = model, version, signature

    async def ready(self, concurrency: int) -> None:
        """Nothing is needed."""

    def call(self) -> "asyncio.Future[Answer]":
        return self._port.run(*self._route, next(self._inputs))

    async def close(self) -> None:
        self._port.close()


async def served(name: str, version: int | None) -> tuple[AsyncClient, int, Signatures]:
    """A port to the engine that serves this model. Raises ServingError if none does."""
    model = connect(name, version)
    found, number = model.signatures, model.version
    model.close()
    for path in (Home.find().path / "engines").glob("*.sock"):
        with contextlib.suppress(ServingError):
            port = await AsyncClient.open(str(path))
            told: Any = await port.ask({"ask": "models"})
            if any((one["model"], one["version"]) == (name, number) for one in told):
                return port, number, found
            port.close()
    raise ServingError(f"The engine that served {name!r} has just ended.", Code.UNAVAILABLE)
