"""The threads that bring models into memory, and whatever else takes long.

Requests of a model that is being loaded wait in its queue; those of others go on. There are several
threads, as a load may take its time, or never end; the store says how many load at once, so a
thread too many costs nothing, and one too few has a good model wait for those that never end.
"""

import queue
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial

from sublet.errors import ServingError

from . import failures
from .batch_runner import BatchRunner
from .model_entries import Loaded
from .scheduler import Scheduler

_THREADS = 16
_SWEEP = 1.0  # Seconds between two looks at models that nobody uses.


class Loader:
    """The threads that load models; `wake` is called when requests can go on."""

    def __init__(self, scheduler: Scheduler, runner: BatchRunner, wake: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._wake = wake
        self._work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._wanted: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    def start(self) -> None:
        for number in range(_THREADS):
            name = f"loader-{number}"
            threading.Thread(target=self._run, args=(not number,), name=name, daemon=True).start()

    def later(self, work: Callable[[], object]) -> None:
        """Do this in one of its threads."""
        self._work.put(work)

    def want(self, model: str, version: int) -> None:
        """Requests wait for this one; asked again while it loads, nothing is done."""
        with self._lock:
            if (model, version) in self._wanted:
                return
            self._wanted.add((model, version))
        self.later(partial(self._bring, model, version))

    def bring(self, model: str, version: int) -> Loaded:
        """Load a model unless it is in memory. Raises ServingError. Blocks."""
        result = self._scheduler.store.use(model, version) or self._bring(model, version)
        if isinstance(result, ServingError):
            raise result
        return result

    def unload(self, model: str, version: int) -> None:
        """Give its memory back; the next request loads it again. Takes long."""
        self._scheduler.withdraw(model, version, forget=False)
        self._scheduler.store.unload(model, version)

    def interrupt(self, model: str, version: int) -> None:
        """End what runs of it: TensorFlow ends a loop, but no operation that never returns. The
        next request loads the model anew."""
        loaded = self._scheduler.store.interrupt(model, version)
        if loaded is None:
            return

        def end() -> None:
            loaded.opened.cancel()
            loaded.opened.close()

        # Whoever is inside may never come out: no other thread is to wait for that.
        threading.Thread(target=end, name=f"interrupt {model}", daemon=True).start()

    def forget(self, model: str, version: int) -> None:
        """Serve it no more; requests that wait for it fail. Takes long."""
        lost = self._scheduler.withdraw(model, version, forget=True)
        # Nothing of them has run: they may be sent to another engine that has it.
        self._runner.refuse(lost, failures.not_found(model, version))
        self._scheduler.store.forget(model, version)

    def _run(self, sweeps: bool) -> None:
        while True:
            try:
                work = self._work.get(timeout=_SWEEP if sweeps else None)
            except queue.Empty:
                work = self._sweep
            try:
                work()
            except Exception:
                traceback.print_exc(file=sys.stderr)

    def _sweep(self) -> None:
        self._scheduler.store.sweep()
        for waiting in self._scheduler.absent():
            self.want(waiting.model, waiting.version)

    def _bring(self, model: str, version: int) -> Loaded | ServingError:
        """Have it in memory, and its requests go on, or fail."""
        result: Loaded | ServingError
        try:
            result = self._scheduler.store.load(model, version)
        except Exception as error:
            result = failures.explained(error)
        # Before the queue is looked at: whoever comes after that asks anew.
        with self._lock:
            self._wanted.discard((model, version))
        if isinstance(result, ServingError):
            self._runner.refuse(self._scheduler.failed(model, version), result)
        else:
            self._scheduler.arrived(model, version)
            self._wake()
        return result
