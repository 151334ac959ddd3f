"""What the stock needs of others: engines that take models, and somebody who is told."""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from sublet.serving.catalogue import Catalogue, Signature


class EngineLost(Exception):
    """The engine has ended while it was asked for something."""


class Host(Protocol):
    """Who has an engine for models, and puts another in its place when it ends."""

    site: str
    """The device that it is on; empty if the server uses no other."""
    path: str
    """The socket of the engine; empty while there is none."""
    turn: asyncio.Lock
    """Held by whoever has it load something."""

    async def ready(self) -> None:
        """Until there is an engine. Raises BadRequest if there can be none."""

    async def add(
        self, name: str, number: int, path: str, options: Mapping[str, Any], suspect: float
    ) -> None:
        """Make a version known, to be loaded when it is called. `suspect`: until when it may be
        why an engine has ended, as `Blame.until`."""

    async def load(self, name: str, number: int) -> Mapping[str, Signature]:
        """Load a version that is known; its signatures. ServingError: it cannot be served."""

    async def full(self) -> bool:
        """Whether a load would put another model out of memory."""

    async def unload(self, name: str, number: int) -> None:
        """Answer what was asked of it, give its memory back, and know it no more."""


class Audience(Protocol):
    """Who has to know what is served."""

    def publish(self, catalogue: Catalogue) -> int:
        """Tell them; the number of this news."""

    async def heard(self, number: int) -> None:
        """Until no request goes to what the news before said."""
