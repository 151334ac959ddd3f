"""Asks the engines in a thread what they serve. Engines push nothing, so it asks now and then."""

import threading
from collections.abc import Callable

from msgspec.structs import replace

from sublet.errors import SubletError
from sublet.home import Home
from sublet.serving.metrics import Row

_EVERY = 2.0
"""Seconds between looks. Where no engine is, a look is at an empty directory."""


class ModelWatch:
    """One thread; calls back from there when something has changed."""

    def __init__(self, home: Home, on_change: Callable[[list[Row]], None]) -> None:
        self._engines = home.path / "engines"
        self._on_change = on_change
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="models", daemon=True).start()

    def close(self) -> None:
        """Stop soon; nothing is called back any more."""
        self._closed.set()

    def _run(self) -> None:
        before: list[Row] = []
        while not self._closed.is_set():
            rows = self._look()
            if rows != before and not self._closed.is_set():
                before = rows
                self._on_change(rows)
            self._closed.wait(_EVERY)

    def _look(self) -> list[Row]:
        try:
            if not any(self._engines.glob("*.*")):
                return []
            from sublet.serving.client.engine_directory import list_models  # Loads NumPy.

            # How long nobody has called a model changes by itself.
            return [replace(row, idle=None) for row in list_models()]
        except (SubletError, OSError, ImportError):
            return []
