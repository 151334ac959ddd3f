"""What people and programs who look are shown. Changes nothing."""

import itertools
import os
from collections import deque
from functools import cached_property
from typing import TYPE_CHECKING

import sublet
from sublet.broker import views
from sublet.domain.job import Finished, Job
from sublet.policy.wait_reasons import Reasons
from sublet.wire import messages
from sublet.wire.rows import JobRow, WaitingRow

if TYPE_CHECKING:
    from sublet.broker.broker import Broker

_REMEMBERED = 100
"""So many of those that ended last are known in the order of their ends."""
_MOST_SHOWN = 100
"""So many of those who wait are in a snapshot; `sublet ps` has them all."""


class Snapshots:
    """The broker's knowledge, drawn when somebody asks."""

    def __init__(self, broker: "Broker") -> None:
        self._of = broker

    def snapshot(self) -> messages.Snapshot:
        """All that is known now."""
        facts = self._of.probe.facts()
        return messages.Snapshot(
            version=sublet.__version__,
            pid=os.getpid(),
            home=str(self._of.home.path),
            up=self._of.clock.wall() - self._of.began,
            driver=self._of.probe.driver,
            devices=views.device_rows(self._of.capacities()),
            leases=views.lease_rows(
                self._of.state.holding(), facts, self._of.samples, self._of.home
            ),
            waiting=self._waiting_rows(),
            nurseries=views.nursery_rows(self._of.launcher.nurseries.all()),
            waits=len(self._of.queue.wait_queue),
        )

    def _waiting_rows(self) -> tuple[WaitingRow, ...]:
        wait_queue = self._of.queue.wait_queue
        first = self._first_waiting(_MOST_SHOWN)
        reasons = Reasons(
            self._of.capacities(), wait_queue, self._of.clock.now(), [job.id for job in first]
        )
        return views.waiting_rows(first, {job.id: reasons.why(job.id) for job in first})

    def rows(self, numbers: tuple[int, ...], live: int, finished: int) -> messages.Jobs:
        """These jobs; without numbers, as many live ones and as many that ended last."""
        if numbers:
            return messages.Jobs(
                self._rows([self._of.job(number) for number in dict.fromkeys(numbers)])
            )
        jobs = self._of.state.holding()
        held = len(jobs)
        jobs += self._first_waiting(live)
        jobs += [job for job in self._of.state.paused() if job.holds is None]
        ended = self._ended(finished)
        left_out = len(self._of.state) - len(jobs[:live])
        return messages.Jobs(
            self._rows([*ended, *jobs[:live]]), held, len(self._of.state) - held, left_out
        )

    def note_end(self, job: Job) -> None:
        """This one has finished. A pool's workers are not remembered: they are too many, and who
        owns the pool has been told."""
        if not job.spec.is_pools:
            self._lately.append(job.id)

    def _ended(self, count: int) -> list[Job]:
        """The jobs that ended last, in that order; of more than are remembered, those that came
        last."""
        if count > _REMEMBERED:
            return self._of.work.ledger.latest(count)
        numbers = list(dict.fromkeys(reversed(self._lately)))
        found = (self._of.work.find(number) for number in numbers)
        ended = (job for job in found if job is not None and isinstance(job.state, Finished))
        return list(itertools.islice(ended, count))[::-1]

    @cached_property
    def _lately(self) -> deque[int]:
        """The numbers of those that ended last; of those that an earlier broker saw end, those
        that came last."""
        before = self._of.work.ledger.latest(10 * _REMEMBERED)
        return deque((job.id for job in before if not job.spec.is_pools), _REMEMBERED)

    def _first_waiting(self, count: int) -> list[Job]:
        """Those who wait, as the last plan saw them; who has left since is left out."""
        found = (
            self._of.state.get(one.job)
            for one in itertools.islice(self._of.queue.wait_queue, count)
        )
        return [job for job in found if job is not None]

    def row(self, number: int) -> JobRow:
        """How this job stands."""
        return self._rows([self._of.job(number)])[0]

    def _rows(self, jobs: list[Job]) -> tuple[JobRow, ...]:
        wait_queue, now = self._of.queue.wait_queue, self._of.clock.now()
        waiting = [job.id for job in jobs if job.id in wait_queue]
        reasons = Reasons(self._of.capacities(), wait_queue, now, waiting) if waiting else None
        return tuple(
            views.job_row(
                job,
                reasons.why(job.id) if reasons and job.id in wait_queue else "it has just come",
                reasons.start(job.id) if reasons and job.id in wait_queue else None,
                self._of.ends.get(job.id, now) - now,
                self._of.samples.get(job.attempt_id),
                self._of.home,
                self._larger(job),
            )
            for job in jobs
        )

    def _larger(self, job: Job) -> int | None:
        """For one that ran out of memory: a ceiling worth trying."""
        if not isinstance(job.state, Finished) or job.state.lease is None:
            return None
        return self._of.suggest(job, job.state.lease, job.state.outcome)
