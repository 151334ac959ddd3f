"""Trials of a sweep in leased workers, as many at a time as fit: one trial, one worker."""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, as_completed
from types import ModuleType
from typing import Any

from sublet.errors import CallFailed
from sublet.pool.pool import Pool
from sublet.sweeps.records import Trial


class Packed:
    """Sends trials to a pool and takes their answers. `remote` is `inside.sweeping.remote`."""

    def __init__(
        self, remote: ModuleType, builder: Any, data: Any, epochs: int, callbacks: Any, memory: str
    ) -> None:
        self._remote = remote
        self._builder, self._data = builder, data
        self._epochs, self._callbacks = epochs, callbacks
        self._memory = memory
        self._pool: Pool | None = None
        self._futures: dict[Future[Any], Trial] = {}
        self.kept: dict[int, Any] = {}
        """The trials between two rungs."""

    def start(self, trials: Iterable[Trial], until: int) -> None:
        """Have these trained up to an epoch, each from its state, or from the beginning."""
        for trial in trials:
            if self._pool is None:
                workers = len(os.sched_getaffinity(0))
                self._pool = Pool(workers, self._memory, name="sweep", on_oom="grow")
            kept = self.kept.get(trial.number)
            one = self._remote.TrialOrder(trial.number, trial.params, kept)
            order = self._remote.Order(
                self._builder, self._data, (one,), until, self._epochs, self._callbacks
            )
            self._futures[self._pool.submit(self._remote.perform, order)] = trial

    def answers(self) -> Iterator[tuple[Any, int]]:
        """The answers as they come, each with the epochs that were trained before."""
        while self._futures:
            future = next(as_completed(self._futures))
            trial = self._futures.pop(future)
            before = self.kept.pop(trial.number, None)
            try:
                (answer,) = future.result()
            except CallFailed as error:
                answer = self._remote.Answer(trial.number, error=error.message)
            if answer.kept is not None:
                self.kept[trial.number] = answer.kept
            yield answer, 0 if before is None else before.epochs

    def terminate(self) -> None:
        """End the workers, whatever they do."""
        if self._pool is not None:
            self._pool.terminate_workers()

    def close(self) -> None:
        """End the workers once they are done."""
        if self._pool is not None:
            self._pool.shutdown()
