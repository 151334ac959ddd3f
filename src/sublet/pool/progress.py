"""The bar of `Pool.map`: how many calls are done, and why others wait.

Drawn on stderr, and only for a person who looks: on a terminal or in a notebook. It appears when
the work has taken a moment. Loads rich when there is something to draw.
"""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_SOON = 0.5
"""Seconds before anything is drawn."""
_AGAIN = 0.2


class Bar:
    """Follows futures; drawn while it is open. `reason` says why a call waits for a lease."""

    def __init__(self, name: str, reason: Callable[[], str], wanted: bool | None) -> None:
        self._name = name
        self._reason = reason
        self._drawn = somebody_looks() if wanted is None else wanted
        self._total = 0
        self._done = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def follow(self, future: Future[T], steps: int = 1) -> Future[T]:
        """Count this one, which stands for so many calls."""
        self._total += steps

        def done(_: Any) -> None:
            with self._lock:
                self._done += steps

        if self._drawn:
            future.add_done_callback(done)
        return future

    def __enter__(self) -> "Bar":
        if self._drawn and self._total:
            self._thread = threading.Thread(target=self._draw, name="sublet-bar", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _draw(self) -> None:
        if self._over.wait(_SOON):
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[reason]}"),
        )
        with Progress(*columns, console=console, refresh_per_second=8) as progress:
            task = progress.add_task(self._name, total=self._total, reason="")
            while True:
                over = self._over.wait(_AGAIN)
                progress.update(task, completed=self._done, reason=self._reason()[:60])
                if over:
                    return


def somebody_looks() -> bool:
    """Whether stderr is a terminal, or this is a notebook."""
    try:
        if sys.stderr.isatty():
            return True
    except (AttributeError, ValueError):
        return False
    shell = sys.modules.get("IPython")
    current = shell.get_ipython() if shell is not None else None
    return current is not None and hasattr(current, "kernel")
