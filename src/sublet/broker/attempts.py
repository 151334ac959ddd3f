"""What becomes of attempts, as the launcher and the lodgers report it.

An attempt's lease ends here and nowhere else, because its exit was seen.
"""

from typing import TYPE_CHECKING

import msgspec

from sublet.backends.local.reports import Ending, how_started
from sublet.broker import job_clients
from sublet.broker.device_usage import UsageSample
from sublet.broker.events import AttemptEnded, NeverRan, WorkerStarted
from sublet.broker.measurements import start_of
from sublet.broker.takeover import await_client, client_lives
from sublet.broker.verdict import outcome as judge
from sublet.domain.job import Again, Job, Outcome, Process, Starting, Tenant
from sublet.domain.lease import Lease
from sublet.policy import retry
from sublet.wire import messages as say

if TYPE_CHECKING:
    from sublet.broker.broker import Broker

_LOOP = f"a crash loop: it ended {retry.LOOP} times in the same way, soon after its start"


class Attempts:
    """The broker's ear for workers."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def started(self, run: str, keeper: Process, worker: Process, how: str) -> None:
        """A worker runs; a broker that has adopted it knew that already."""
        job = self._of(run)
        if job is None or not isinstance(job.holds, Starting):
            return
        at = self._broker.clock.wall()
        self._broker.books.happened(WorkerStarted(job.id, job.attempt, at, keeper, worker, how))
        self._broker.clients.tell(job.id, say.Started(worker.pid, how))

    def sampled(self, run: str, now: int, peak: int, pids: list[int], busy: float) -> None:
        """What a tree holds and does has changed."""
        self._broker.samples[run] = UsageSample(now, peak, tuple(pids), busy)
        self._broker.guests.hold(self._broker.state.holding(), self._broker.samples)

    def ended(self, run: str, ending: Ending) -> None:
        """The exit was seen: the lease ends."""
        job = self._of(run)
        if job is None:
            return
        assert job.lease is not None
        broker, lease = self._broker, job.lease
        directory = str(broker.home.runs / run)
        neighbours = self._neighbours(job, lease)
        told = judge(job, ending, directory, neighbours, run in broker.interrupted)
        broker.interrupted.discard(run)
        how = how_started(directory) or job.how
        at, tick = broker.clock.wall(), broker.clock.now()
        lent = broker.nests.take_most(run)
        if lease.device in broker.devices and ending.status is not None:
            kind = broker.devices[lease.device].kind
            needed = _with_lent(told, lent)
            broker.books.measured(job, kind, lease.ceiling, needed, _start(job, how), at)
            broker.books.when_written(lambda: self._learned(job))
        broker.strangers.lease_ended(lease.device, lease.charge, tick)
        again = self._second_try(job, lease, told)
        if again is None and job.spec.client is None and retry.loops(job, told):
            told = msgspec.structs.replace(told, message=_LOOP)
        event = AttemptEnded(job.id, job.attempt, at, told, again, tick, how)
        now = broker.books.happened(event)
        broker.samples.pop(run, None)
        broker.ends.pop(job.id, None)
        broker.guests.forget(run)
        broker.books.when_written(lambda: broker.launcher.forget(run))
        broker.end_inner(job)
        if again is None:
            broker.close_job(now)
        else:
            broker.nests.settle(job.spec.within)
            broker.clients.tell(job.id, say.Retried(told, lease, again.least))
            broker.plan_after(again.delay, job.id)

    def never_ran(self, run: str, why: str) -> None:
        """No line of the program has run: it waits again, and nothing is lost."""
        job = self._of(run)
        if job is None:
            return
        broker = self._broker
        at, tick = broker.clock.wall(), broker.clock.now()
        broker.books.happened(NeverRan(job.id, job.attempt, at, tick))
        broker.samples.pop(run, None)
        broker.nests.settle(job.spec.within)
        broker.books.when_written(lambda: broker.launcher.forget(run))
        stopping = job.holds.stopping if job.holds is not None else ""
        if job.spec.client is None:
            if stopping == "cancelled":
                broker.withdraw(job, "`sublet cancel`", "cancelled")
        elif stopping and job.id not in broker.clients:
            # Its client lives, as that of a pool does, and has hung up on this job.
            broker.withdraw(job, job_clients.GONE)
        elif run in broker.interrupted:
            broker.withdraw(job, "its user ended it before it began")
        elif broker.closing:
            broker.withdraw(job, broker.DOWN_CAME_FIRST)
        elif not client_lives(job) and (job.id not in broker.clients or job.spec.lodger):
            broker.withdraw(job, job_clients.GONE)
        elif job.id not in broker.clients and job.spec.lodger:
            await_client(broker, job)
        broker.interrupted.discard(run)

    def nurseries_changed(self) -> None:
        """What could not start may be able to now."""
        self._broker.queue.touch_all()
        self._broker.books.changed = True

    def _learned(self, job: Job) -> None:
        """The ledger knows how this run went: others of the same program are sized by it."""
        self._broker.queue.revise(self._broker.appraiser.measured(job))
        self._broker.books.changed = True

    def _second_try(self, job: Job, lease: Lease, told: Outcome) -> Again | None:
        """The terms of another attempt, if there is to be one."""
        broker = self._broker
        if job.spec.client is not None and (job.id not in broker.clients or broker.closing):
            return None
        return retry.again(job, told, broker.suggest(job, lease, told))

    def _neighbours(self, job: Job, lease: Lease) -> tuple[Tenant, ...]:
        """Who else held memory on the job's device, for the story of its end."""
        rooms = (room for room in self._broker.rooms() if room.device.id == lease.device)
        return tuple(one for room in rooms for one in room.tenants if one.job != job.id)

    def _of(self, run: str) -> Job | None:
        """The live job whose current attempt this is; late news of an old one is no news."""
        job = self._broker.state.get(int(run.partition(".")[0]))
        return job if job is not None and job.run == run else None


def _start(job: Job, how: str) -> str:
    """How it was started: that is part of what a process costs."""
    if job.spec.lodger is not None:
        return "lodger"
    return "warm" if how == "warm" else "cold" if start_of(job) == "cold" else "fresh"


def _with_lent(told: Outcome, lent: int) -> Outcome:
    """What a lease was needed for: its program, and what that lent to others."""
    if not lent:
        return told
    system = None if told.system_peak is None else told.system_peak + lent
    return msgspec.structs.replace(told, peak=(told.peak or 0) + lent, system_peak=system)
