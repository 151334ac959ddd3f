"""The progress bar of `Pool.map`: how many calls are done or have failed, and why others wait.

Drawn on a terminal or in a notebook only, once the work has taken a moment. Otherwise nothing is
counted, started or loaded.
"""

import atexit
import contextvars
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from sublet.pool import progress_canvas

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")

_SOON = 0.5
"""Seconds before anything is drawn."""
_AGAIN = 0.2
_LONGEST_NAME = 16


class Bar:
    """Follows futures, and is drawn while it is open. `reason` says why a call waits for a lease.

    Its last state stays on the screen if all went well; after an error it is removed.
    """

    def __init__(self, name: str, reason: Callable[[], str], wanted: bool = True) -> None:
        self._name = name
        self._reason = reason
        self._canvas = progress_canvas.here() if wanted else None
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._total = 0
        self._done = 0
        self._failed = 0
        self._over = threading.Event()
        self._well = False
        self._thread: threading.Thread | None = None

    def follow(self, future: Future[T], steps: int = 1) -> Future[T]:
        """Count this future, which stands for `steps` calls."""
        if self._canvas is None:
            return future

        def ended(future: Future[T]) -> None:
            if future.cancelled():
                return
            with self._lock:
                self._done += steps
                if future.exception() is not None:
                    self._failed += steps

        self._total += steps
        future.add_done_callback(ended)
        return future

    def __enter__(self) -> "Bar":
        if self._total:
            # A notebook finds the cell of an output by its context.
            context = contextvars.copy_context()
            self._thread = threading.Thread(
                target=context.run, args=(self._draw,), name="sublet-bar", daemon=True
            )
            self._thread.start()
            atexit.register(self.close)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(well=kind is None)

    def close(self, well: bool = False) -> None:
        """Stop drawing, also at exit: the terminal is left as it was."""
        self._well = well
        self._over.set()
        if self._thread is not None:
            atexit.unregister(self.close)
            self._thread.join()

    def _draw(self) -> None:
        if self._canvas is None or self._over.wait(_SOON):
            return
        picture = self._picture()
        try:
            while True:
                self._canvas.show(self._updated(picture))
                if self._over.wait(_AGAIN):
                    break
        finally:
            self._canvas.close(self._updated(picture) if self._well else None)

    def _picture(self) -> "Progress":
        """Make the bar. Loads rich, which takes longer than a short map."""
        from rich import progress
        from rich.table import Column

        name = Column(no_wrap=True, overflow="ellipsis", max_width=_LONGEST_NAME)
        rest = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        picture = progress.Progress(
            progress.TextColumn("{task.description}", markup=False, table_column=name),
            progress.BarColumn(bar_width=12),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[failed]}", style="red", markup=False),
            progress.TextColumn(
                "{task.fields[reason]}", style="dim", markup=False, table_column=rest
            ),
            expand=True,
            auto_refresh=False,
            get_time=time.monotonic,
            # Estimate from all calls, because a single one may take long.
            speed_estimate_period=float("inf"),
        )
        picture.add_task(self._name, total=self._total, failed="", reason="")
        picture.tasks[0].start_time = self._began
        return picture

    def _updated(self, picture: "Progress") -> "Progress":
        failed = f"{self._failed} failed" if self._failed else ""
        # The caller may have the last result before our callback has counted it.
        done = self._total if self._well else self._done
        picture.update(picture.task_ids[0], completed=done, failed=failed, reason=self._reason())
        return picture
