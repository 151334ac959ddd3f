"""The line of those who wait, kept in step with the state job by job.

A plan for ten thousand jobs must not begin by looking at all of them: only those of which something
has changed are looked at again. Owns who is put off and why; never decides who starts.
"""

import itertools
from collections.abc import Callable

from sublet.broker.appraisal import Appraiser
from sublet.broker.dependencies import Dependencies
from sublet.broker.state import State
from sublet.domain.job import Job, Waiting
from sublet.policy.line import Line
from sublet.policy.rooms import Room


class Queue:
    """Puts jobs into the line and takes them out."""

    def __init__(
        self,
        state: State,
        appraiser: Appraiser,
        dependencies: Dependencies,
        unready: Callable[[Job], str],
        now: Callable[[], float],
    ) -> None:
        """`unready` says why a job could not be started for the moment; empty if it could."""
        self.line = Line()
        self._state = state
        self._appraiser = appraiser
        self._dependencies = dependencies
        self._unready = unready
        self._now = now
        self._touched: dict[int, None] = {}
        self._dependents: dict[int, set[int]] = {}
        self._arrays: dict[int, dict[int, None]] = {}
        """The live jobs of arrays that may only run so many at once, in order."""
        self._came: dict[int, float] = {}
        for job in state.jobs():
            self.touch(job.id)

    def touch(self, number: int) -> None:
        """Something about this job has changed."""
        self._touched[number] = None

    def touch_all(self) -> None:
        """Something about all of them may have changed."""
        self._touched |= dict.fromkeys(job.id for job in self._state.waiting())

    def update(self, rooms: tuple[Room, ...]) -> list[Job]:
        """Bring the line up to date; returns jobs that can never start, for others have failed."""
        hopeless = []
        if self._appraiser.outdated(rooms):
            self.touch_all()
        while self._touched:
            touched, self._touched = self._touched, {}
            for number in touched:
                job = self._state.get(number)
                if job is None:
                    self._ended(number)
                    continue
                self._join(job)
                if not isinstance(job.state, Waiting):
                    self.line.take(number)
                elif self._dependencies.hopeless(job):
                    hopeless.append(job)
                    self.line.take(number)
                else:
                    held = self._held(job)
                    self.line.put(self._appraiser.candidate(job, rooms, self._since(job), held))
        return hopeless

    def _join(self, job: Job) -> None:
        """Remember whom it waits for, and its array."""
        for other in self._dependencies.unmet(job):
            self._dependents.setdefault(other, set()).add(job.id)
        task = job.spec.task
        if task is not None and task.at_once:
            self._arrays.setdefault(task.array, {}).setdefault(job.id)

    def _ended(self, number: int) -> None:
        """It is not live any more: others may be able to start."""
        self.line.take(number)
        self._appraiser.forget(number)
        self._came.pop(number, None)
        for other in self._dependents.pop(number, ()):
            self.touch(other)
        for array, jobs in list(self._arrays.items()):
            if number in jobs:
                del jobs[number]
                # Those within the bound now were not all within it before.
                for other in itertools.islice(jobs, self._bound(jobs)):
                    self.touch(other)
                if not jobs:
                    del self._arrays[array]

    def _bound(self, jobs: dict[int, None]) -> int:
        first = self._state.get(next(iter(jobs), 0))
        return first.spec.task.at_once if first is not None and first.spec.task else 0

    def _held(self, job: Job) -> str:
        """Why a job could not start now, whatever is free; empty if it could."""
        if unmet := self._dependencies.unmet(job):
            return f"after {', '.join(f'#{number}' for number in unmet)}"
        task = job.spec.task
        if task is not None and task.at_once:
            first = itertools.islice(self._arrays[task.array], task.at_once)
            if job.id not in first:
                return f"{task.at_once} of its array run at a time"
        assert isinstance(job.state, Waiting)
        left = job.state.tick + job.state.delay - self._now()
        # More than the delay would be left after a reboot, when the clock began anew.
        if 0 < left <= job.state.delay:
            return job.state.why
        return self._unready(job)

    def _since(self, job: Job) -> float:
        """When it came, in monotonic time; a wall clock that is set later changes nothing."""
        if job.id not in self._came:
            assert isinstance(job.state, Waiting)
            tick, now = job.state.tick, self._now()
            # A tick in the future is of an earlier boot.
            self._came[job.id] = tick if 0 < tick <= now else now
        return self._came[job.id]
