"""An engine as those see it who load models into it."""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from sublet.engine.savedmodel_proto import Signature


class EngineLost(Exception):
    """The engine has ended while it was asked for something."""


class SupervisedEngine(Protocol):
    """An engine, and those that are started in its place when it ends."""

    device: str
    """The name of its device; empty if the server uses only one."""
    path: str
    """The socket of the engine; empty while there is none."""
    load_lock: asyncio.Lock
    """Held while a version is loaded: one at a time, unless it takes long."""

    async def ready(self) -> None:
        """Wait for an engine. Raises BadRequest if there can be none."""

    async def add(
        self, name: str, number: int, path: str, options: Mapping[str, Any], suspect: float
    ) -> None:
        """Make a version known, to be loaded when it is called; `suspect` is `Blame.until`."""

    async def load(self, name: str, number: int) -> Mapping[str, Signature]:
        """Load a version that is known; its signatures. ServingError: it cannot be served."""

    async def full(self) -> bool:
        """Whether a load would evict another model."""

    async def unload(self, name: str, number: int) -> None:
        """Let its requests be answered, give its memory back, and forget it."""
