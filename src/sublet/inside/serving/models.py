"""The models of an engine: which are known, which are in memory.

Owns loading and unloading.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.inside.serving.loading import Opened, Opening
from sublet.inside.serving.signatures import Bound

Key = tuple[str, int]


class Loaded:
    """One version of a model in memory."""

    def __init__(self, name: str, version: int, opened: Opened) -> None:
        self.name = name
        self.version = version
        self.opened = opened

    @property
    def signatures(self) -> dict[str, Bound]:
        return self.opened.signatures


class Store:
    """All models of an engine."""

    def __init__(self) -> None:
        self._known: dict[Key, tuple[str, dict[str, Any]]] = {}
        self._loaded: dict[Key, Loaded] = {}
        self._used: dict[Key, float] = {}
        self._lock = threading.Lock()

    def add(
        self, name: str, version: int, path: str, options: Mapping[str, Any] | None = None
    ) -> None:
        """Make a version known; it is loaded later."""
        with self._lock:
            self._known[name, version] = (path, dict(options or {}))

    def load(self, name: str, version: int) -> Loaded:
        """The version, in memory."""
        known = self._known.get((name, version))
        if known is None:
            raise ServingError(
                f"Servable not found for request: Specific({name}, {version})", Code.NOT_FOUND
            )
        loaded = self._loaded.get((name, version))
        if loaded is None:
            loaded = Loaded(name, version, Opening(*known).run())
            self._loaded[name, version] = loaded
        return loaded

    def unload(self, name: str, version: int) -> None:
        """Give its memory back; it stays known."""
        loaded = self._loaded.pop((name, version), None)
        if loaded is not None:
            loaded.opened.close()

    def forget(self, name: str, version: int) -> None:
        """Unload it, and know it no more."""
        self._known.pop((name, version), None)
        self.unload(name, version)

    def use(self, name: str, version: int) -> Loaded | None:
        """The version if it is in memory; None if it has to be loaded first."""
        self._used[name, version] = time.monotonic()
        return self._loaded.get((name, version))
