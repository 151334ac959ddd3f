"""The thread that brings models into memory, one after another.

Requests of a model that is being loaded wait in its queue; those of others go on. The owner is told
before each load and after it, so that it knows what an engine did that ended in the middle.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from sublet.errors import ServingError

from .floor import Floor
from .models import Loaded
from .runner import Runner, as_answer


class Loader:
    """`tell` speaks to the owner; `wake` is called when requests can go on."""

    def __init__(
        self,
        floor: Floor,
        runner: Runner,
        tell: Callable[[dict[str, Any]], None],
        wake: Callable[[], None],
    ) -> None:
        self._floor = floor
        self._runner = runner
        self._tell = tell
        self._wake = wake
        self._work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._wanted: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin to work."""
        threading.Thread(target=self._run, name="loader", daemon=True).start()

    def later(self, work: Callable[[], object]) -> None:
        """Do this in its thread, after what it has."""
        self._work.put(work)

    def want(self, model: str, version: int) -> None:
        """Requests wait for this one; asked again while it loads, nothing is done."""
        with self._lock:
            if (model, version) in self._wanted:
                return
            self._wanted.add((model, version))
        self.later(partial(self._bring, model, version))

    def bring(self, model: str, version: int) -> Loaded:
        """The model, in memory. Raises ServingError. In this thread only."""
        result = self._floor.store.use(model, version) or self._bring(model, version)
        if isinstance(result, ServingError):
            raise result
        return result

    def unload(self, model: str, version: int) -> None:
        """Give its memory back; the next request loads it again. In this thread only."""
        self._floor.withdraw(model, version, forget=False)
        self._floor.store.unload(model, version)

    def forget(self, model: str, version: int) -> None:
        """Serve it no more; requests that wait for it fail. In this thread only."""
        lost = self._floor.withdraw(model, version, forget=True)
        gone = ServingError(f"The model {model} {version} is served no more.", 5)
        self._runner.refuse(lost, gone)
        self._floor.store.forget(model, version)

    def _run(self) -> None:
        while True:
            work = self._work.get()
            try:
                work()
            except Exception:
                traceback.print_exc(file=sys.stderr)

    def _bring(self, model: str, version: int) -> Loaded | ServingError:
        """Have it in memory, and its requests go on, or fail."""
        told = {"model": model, "version": version}
        self._tell({"event": "loading", **told})
        began = time.monotonic()
        result: Loaded | ServingError
        try:
            result = self._floor.store.load(model, version)
        except Exception as error:
            result = as_answer(error)
        # Before the queue is looked at: whoever comes after that asks anew.
        with self._lock:
            self._wanted.discard((model, version))
        if isinstance(result, ServingError):
            self._runner.refuse(self._floor.failed(model, version), result)
            self._tell({"event": "failed", **told, "code": result.code, "error": result.message})
        else:
            self._floor.arrived(model, version)
            self._tell({"event": "loaded", **told, "seconds": time.monotonic() - began})
            self._wake()
        return result
