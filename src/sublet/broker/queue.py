"""The wait queue, kept in step with the state job by job.

A plan for ten thousand jobs must not begin by looking at all of them: only those of which something
has changed are looked at again. Owns who is put off and why; never decides who starts.
"""

import itertools
from collections.abc import Callable, Iterable

from sublet.broker.arrays import Arrays
from sublet.broker.dependencies import Dependencies
from sublet.broker.size_estimates import SizeEstimator
from sublet.broker.state import State
from sublet.domain.job import Gang, Job, Waiting
from sublet.policy.capacity import Capacity
from sublet.policy.growth import spare_main_memory
from sublet.policy.wait_queue import Candidate, WaitQueue

_NAMED = 3
_SLICE = 25
"""So many sizes are worked out again at a time: that asks the ledger, and others wait."""


class Queue:
    """Puts jobs into the wait queue and takes them out."""

    def __init__(
        self,
        state: State,
        estimator: SizeEstimator,
        dependencies: Dependencies,
        unready: Callable[[Job, WaitQueue], str],
        now: Callable[[], float],
    ) -> None:
        """`unready` says why a job could not be started for the moment; empty if it could."""
        self.wait_queue = WaitQueue()
        self._state = state
        self._estimator = estimator
        self._dependencies = dependencies
        self._unready = unready
        self._now = now
        self._touched: dict[int, None] = {}
        self._outdated: dict[int, None] = {}
        self._after: dict[int, tuple[int, ...]] = {}
        """The live jobs, and whom each is to come after."""
        self._dependents: dict[int, set[int]] = {}
        """The same the other way round."""
        self._arrays = Arrays()
        self._gangs: dict[int, Gang] = {}
        """The gangs of live jobs, by job."""
        self._came: dict[int, tuple[float, float]] = {}
        for job in state.jobs():
            self.touch(job.id)

    def touch(self, number: int) -> None:
        """Something about this job has changed."""
        self._touched[number] = None

    def revise(self, numbers: Iterable[int]) -> None:
        """More is known of what these jobs need: they are looked at again, a slice at a time.

        Until then they stand in the queue with what was known before, which is no less safe.
        """
        self._outdated = dict.fromkeys(sorted({*self._outdated, *numbers}))

    @property
    def behind(self) -> bool:
        """Whether there is more to look at than one update does."""
        return bool(self._outdated)

    def delay(self, job: Job) -> float:
        """Seconds in which a job that waits is not started yet."""
        if not isinstance(job.state, Waiting) or not job.state.delay:
            return 0.0
        left = job.state.tick + job.state.delay - self._now()
        # More than the delay would be left after a reboot, when the clock began anew.
        return left if 0 < left <= job.state.delay else 0.0

    def update(self, capacities: tuple[Capacity, ...]) -> list[Job]:
        """Bring the wait queue up to date; returns jobs that can never start, because jobs have
        failed that they depend on."""
        hopeless: dict[int, Job] = {}
        if self._estimator.outdated(capacities, spare_main_memory(capacities, self.wait_queue)):
            self.revise(job.id for job in self._state.waiting())
        for number in list(itertools.islice(self._outdated, _SLICE)):
            self.touch(number)
        while self._touched:
            touched, self._touched = self._touched, {}
            for number in touched:
                self._outdated.pop(number, None)
                job = self._state.get(number)
                if job is None:
                    self._leave(number)
                    continue
                self._join(job)
                if job.spec.gang is not None:
                    self._put_gang(job.spec.gang, capacities)
                elif not isinstance(job.state, Waiting):
                    self.wait_queue.take(number)
                elif self._dependencies.hopeless(job):
                    hopeless[number] = job
                    self.wait_queue.take(number)
                else:
                    held = self._held(job)
                    one = self._estimator.candidate(job, capacities, self._since(job), held)
                    if one != self.wait_queue.get(number):
                        self.wait_queue.put(one)
        return list(hopeless.values())

    def _put_gang(self, gang: Gang, capacities: tuple[Capacity, ...]) -> None:
        """Have a gang in the queue while all of its jobs wait, as one candidate."""
        ones: list[Candidate] = []
        for number in gang.numbers:
            job = self._state.get(number)
            if job is None or not isinstance(job.state, Waiting):
                self.wait_queue.take(gang.first)
                return
            since, held = self._since(job), self._held(job)
            ones.append(self._estimator.candidate(job, capacities, since, held))
        together = self._estimator.together(ones, capacities)
        if together != self.wait_queue.get(gang.first):
            self.wait_queue.put(together)

    def _join(self, job: Job) -> None:
        """Remember whom it waits for, and its place in its array."""
        if job.spec.gang is not None:
            self._gangs[job.id] = job.spec.gang
        if job.id not in self._after:
            self._after[job.id] = (*job.spec.after, *job.spec.after_ok)
            for other in self._after[job.id]:
                self._dependents.setdefault(other, set()).add(job.id)
            # It may have come back: those who wait for it have to wait again.
            self._touch_dependents(job.id)
        for other in self._arrays.note(job):
            self.touch(other)

    def _leave(self, number: int) -> None:
        """It is not live any more: others may be able to start."""
        gang = self._gangs.pop(number, None)
        self.wait_queue.take(number if gang is None else gang.first)
        self._estimator.forget(number)
        self._came.pop(number, None)
        for other in self._after.pop(number, ()):
            self._dependents[other].discard(number)
            if not self._dependents[other]:
                del self._dependents[other]
        self._touch_dependents(number)
        for other in self._arrays.drop(number):
            self.touch(other)

    def _touch_dependents(self, number: int) -> None:
        for other in self._dependents.get(number, ()):
            self.touch(other)

    def _held(self, job: Job) -> str:
        """Why a job could not start even if all memory were free; empty if it could."""
        if unmet := self._dependencies.unmet(job):
            named = ", ".join(f"#{number}" for number in unmet[:_NAMED])
            more = len(unmet) - _NAMED
            return f"after {named}" + (f" and {more} more" if more > 0 else "")
        if not self._arrays.lets(job):
            assert job.spec.task is not None
            return f"array limit: {job.spec.task.at_once} at a time"
        assert isinstance(job.state, Waiting)
        return job.state.why if self.delay(job) else self._unready(job, self.wait_queue)

    def _since(self, job: Job) -> float:
        """When it came, in monotonic time; a wall clock that is set later changes nothing."""
        assert isinstance(job.state, Waiting)
        tick, now = job.state.tick, self._now()
        known = self._came.get(job.id)
        if known is None or known[0] != tick:
            # A tick in the future is of an earlier boot: it counts from when we first saw it.
            known = self._came[job.id] = (tick, tick if 0 < tick <= now else now)
        return known[1]
