"""A stand-in for the engines of a server: it loads nothing, and fails as it is told."""

import asyncio
from collections.abc import Mapping
from typing import Any

from sublet.channel.codes import Code
from sublet.engine.savedmodel_proto import Signature
from sublet.errors import ServingError
from sublet.serving.catalogue import Catalogue
from sublet.serving.control.supervised_engine import EngineLost

Key = tuple[str, int]


class PuppetEngine:
    """One engine. `log` has what was asked of it; `gate` holds loads back until it is set."""

    def __init__(self, device: str = "") -> None:
        self.device = device
        self.path = f"{device}engine-1"
        self.load_lock = asyncio.Lock()
        self.known: dict[Key, str] = {}
        self.loaded: set[Key] = set()
        self.log: list[str] = []
        self.bad: dict[Key, str] = {}
        self.capacity = 100
        self.deadly: set[Key] = set()
        self.suspects: set[Key] = set()
        self.endless: set[Key] = set()
        self.lives = 1
        self.lost: Any = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def ready(self) -> None:
        await asyncio.sleep(0)

    async def add(
        self, name: str, number: int, path: str, options: Mapping[str, Any], suspect: float
    ) -> None:
        self.known[name, number] = path
        if suspect:
            self.suspects.add((name, number))

    async def load(self, name: str, number: int) -> Mapping[str, Signature]:
        await self.gate.wait()
        key = (name, number)
        self.log.append(f"load {name} {number}")
        if key not in self.known:
            raise ServingError("Servable not found", Code.NOT_FOUND)
        if key in self.endless:
            await asyncio.Event().wait()
        if key in self.deadly:
            old = self.die([key])
            raise EngineLost(f"The engine {old} ended.")
        if key in self.bad:
            raise ServingError(self.bad[key], Code.DATA_LOSS)
        self.loaded.add(key)
        return {}

    async def full(self) -> bool:
        return len(self.loaded) >= self.capacity

    async def unload(self, name: str, number: int) -> None:
        self.known.pop((name, number), None)
        if (name, number) in self.loaded:
            self.log.append(f"unload {name} {number}")
            self.loaded.discard((name, number))

    def die(self, loading: list[Key], running: list[Key] | None = None) -> str:
        """End, and be another one; who wants to know is told."""
        old = self.path
        self.lives += 1
        self.path = f"{self.device}engine-{self.lives}"
        self.known.clear()
        self.loaded.clear()
        self.suspects.clear()
        if self.lost is not None:
            self.lost(old, loading, running or [])
        return old


class RecordingPublisher:
    """Who is told what is served; keeps all of it."""

    def __init__(self) -> None:
        self.news: list[Catalogue] = []

    def publish(self, catalogue: Catalogue) -> int:
        self.news.append(catalogue)
        return len(self.news)

    async def acknowledged(self, number: int) -> None:
        await asyncio.sleep(0)
