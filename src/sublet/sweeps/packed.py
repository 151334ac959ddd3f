"""Trials of a sweep in leased workers, as many at a time as fit: each has a worker, or a group that
trains as one has."""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from functools import cached_property
from types import ModuleType
from typing import Any

from sublet.errors import CallFailed
from sublet.pool.pool import Pool
from sublet.sweeps.records import Trial


class Packed:
    """Sends trials to a pool and takes their answers. `remote` is `inside.sweeping.remote`."""

    def __init__(
        self,
        remote: ModuleType,
        builder: Any,
        data: Any,
        epochs: int,
        callbacks: Any,
        memory: str,
        on: str = "local",
    ) -> None:
        self._remote = remote
        self._builder, self._data = builder, data
        self._epochs, self._callbacks = epochs, callbacks
        self._memory = memory
        self._on = on
        self.nodes = 0
        """How many machines there are beside this one, where all trials train then."""
        self.count = len(os.sched_getaffinity(0))
        """How many workers there are."""
        if on != "local":
            from sublet.pool.cluster import workers_on

            self.nodes, self.count = workers_on(on).size()
        self._pool: Pool | None = None
        self._futures: dict[Future[Any], Sequence[Trial]] = {}
        self._together: dict[int, int] = {}
        """The first of the trials that each one trains with as one."""
        self.kept: dict[int, Any] = {}
        """The trials between two rungs."""

    @cached_property
    def sendable(self) -> bool:
        """Whether builder, data and callbacks can be sent to workers."""
        import cloudpickle

        try:
            cloudpickle.dumps((self._builder, self._callbacks))
        except Exception:  # Whatever an object of the program raises.
            return False
        return bool(self._data.sendable)

    def join(self, numbers: Sequence[int]) -> None:
        """These trials train as one, in one worker; in one on each node, if there are any."""
        parts = max(1, min(self.nodes, len(numbers)))
        for part in (numbers[at::parts] for at in range(parts)):
            self._together |= dict.fromkeys(part, part[0])

    def start(self, trials: Iterable[Trial], until: int) -> None:
        """Have these trained up to an epoch, each from its state, or from the beginning."""
        groups: dict[int, list[Trial]] = {}
        for trial in trials:
            groups.setdefault(self._together.get(trial.number, trial.number), []).append(trial)
        for members in groups.values():
            order = self._order(members, until)
            self._futures[self._workers.submit(self._remote.perform, order)] = members

    def answers(self) -> Iterator[tuple[Any, int]]:
        """The answers as they come, each with the epochs that were trained before."""
        while self._futures:
            future = next(as_completed(self._futures))
            trials = self._futures.pop(future)
            try:
                answers = future.result()
            except CallFailed as error:
                answers = [
                    self._remote.Answer(trial.number, error=error.message) for trial in trials
                ]
            for answer in answers:
                before = self.kept.pop(answer.number, None)
                if answer.kept is not None:
                    self.kept[answer.number] = answer.kept
                yield answer, 0 if before is None else before.epochs

    def measure(self, trials: Sequence[Trial]) -> Any:
        """Time steps of trials of one architecture, in as many workers as there are; None if one
        failed, which its training will tell again."""
        orders = [self._order([trial], 1) for trial in trials[: self.count]]
        now = time.time()
        futures = [self._workers.submit(self._remote.measure, order, now) for order in orders]
        try:
            found = [future.result() for future in futures]
        except CallFailed:
            return None
        starts, steps = [one.start for one in found], [one.step for one in found]
        return self._remote.Timing(max(starts), sum(steps) / len(steps))

    @property
    def _workers(self) -> Pool:
        if self._pool is None:
            self._pool = Pool(self.count, self._memory, name="sweep", on_oom="grow", on=self._on)
        return self._pool

    def _order(self, trials: Sequence[Trial], until: int) -> Any:
        orders = tuple(
            self._remote.TrialOrder(one.number, one.params, self.kept.get(one.number))
            for one in trials
        )
        return self._remote.Order(
            self._builder,
            self._data,
            orders,
            until,
            self._epochs,
            self._callbacks,
            trials[0].number in self._together,
        )

    def terminate(self) -> None:
        """End the workers, whatever they do."""
        if self._pool is not None:
            self._pool.terminate_workers()

    def close(self) -> None:
        """End the workers once they are done."""
        if self._pool is not None:
            self._pool.shutdown()
