"""Leases within leases: what a program has lent to the jobs that it started itself.

Owns the ceiling that is left for such a program, and what is known of how much it lends. The state
knows which lease is within which; the policy decides who gets one.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from sublet.broker.state import State
from sublet.domain.job import Job, Waiting
from sublet.formats import attempt_files, fence_file
from sublet.formats.usage_file import read_usage
from sublet.keeper import process_tree
from sublet.policy.capacity import Capacity
from sublet.policy.wait_queue import WaitQueue
from sublet.units import MiB, format_bytes

PATIENCE = 10.0
"""Seconds for which a job waits for memory that the program around it holds. That program may wait
for the job in turn, and would do so for ever."""


class NestedLeases:
    """Settles what is left of a lease for the program that has lent from it."""

    def __init__(self, state: State, runs: Path) -> None:
        self._state = state
        self._runs = runs
        self._most: dict[str, int] = {}
        self._cramped: dict[int, float] = {}

    def adopt(self) -> None:
        """What an earlier broker has named as a ceiling may be of another moment."""
        for job in self._state.holding():
            if self._state.within(job.id) or attempt_files.has_ceiling(
                str(self._runs / job.attempt_id)
            ):
                self.settle(job.id)

    def lenders(self, *also: int) -> dict[int, int]:
        """The jobs with others within their leases, and what TensorFlow has taken of each lease for
        the program itself. `also` are looked at before anybody is within."""
        more = (job for number in also if (job := self._state.get(number)) and job.lease)
        return {job.id: self._taken(job) for job in (*self._state.outer(), *more)}

    def settle(self, number: int | None) -> None:
        """Something was granted or has ended within this job's lease: name what is left of it to
        its program. Call it before clients hear of it: they may act at once."""
        job = self._state.get(number) if number is not None else None
        if job is None or job.lease is None:
            return
        lent = self.lent(job)
        if lent:
            self._most[job.attempt_id] = max(lent, self._most.get(job.attempt_id, 0))
        # On a full disk it keeps its old ceiling; what it holds is counted all the same.
        directory = str(self._runs / job.attempt_id)
        with contextlib.suppress(OSError):
            attempt_files.write_ceiling(directory, max(MiB, job.lease.ceiling - lent))
        fence_file.write_bound(directory, max(MiB, job.lease.charge - lent))

    def lent(self, job: Job) -> int:
        """What the leases within this job's are charged now."""
        return sum(one.lease.charge for one in self._state.within(job.id) if one.lease)

    def has_lent(self, job: Job) -> bool:
        """Whether anything has ever been within this attempt's lease."""
        return job.attempt_id in self._most

    def take_most(self, run: str) -> int:
        """The most that this attempt had lent at a time; it has ended."""
        return self._most.pop(run, 0)

    def cramped(
        self, capacities: tuple[Capacity, ...], queue: WaitQueue, now: float
    ) -> Iterator[tuple[Job, str]]:
        """The jobs that wait for what the program around them holds itself, and have done so for
        long; and why each cannot start."""
        stuck: dict[int, float] = {}
        for capacity in capacities:
            for job in [] if capacity.within is None else self._state.within(capacity.within):
                one = queue.get(job.id)
                if one is None or not isinstance(job.state, Waiting):
                    continue
                if not one.offers:
                    yield job, one.held
                elif not one.held and one.smallest > capacity.reachable:
                    stuck[job.id] = self._cramped.get(job.id, now)
                    if now - stuck[job.id] >= PATIENCE:
                        yield job, _why(capacity, one.smallest)
        self._cramped = stuck

    def _taken(self, job: Job) -> int:
        usages = read_usage(str(self._runs / job.attempt_id))
        return sum(usage.peak for usage in usages if process_tree.start_time(usage.pid) is not None)


def _why(capacity: Capacity, charge: int) -> str:
    return (
        f"it needs {format_bytes(charge)}, and of the {format_bytes(capacity.device.capacity)} "
        f"that #{capacity.within} holds, that program itself uses "
        f"{format_bytes(capacity.strangers)}"
    )
