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
from sublet.wire import messages

if TYPE_CHECKING:
    from sublet.broker.broker import Broker

_LOOP = f"a crash loop: it ended {retry.LOOP} times in the same way, soon after its start"


class Attempts:
    """The broker's ear for workers."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def started(self, attempt_id: str, keeper: Process, worker: Process, how: str) -> None:
        """A worker runs; a broker that has adopted it knew that already."""
        job = self._of(attempt_id)
        if job is None or not isinstance(job.holds, Starting):
            return
        at = self._broker.clock.wall()
        self._broker.work.happened(WorkerStarted(job.id, job.attempt, at, keeper, worker, how))
        self._broker.clients.send(job.id, messages.Started(worker.pid, how))

    def sampled(self, attempt_id: str, now: int, peak: int, pids: list[int], busy: float) -> None:
        """What a tree holds and does has changed."""
        self._broker.samples[attempt_id] = UsageSample(now, peak, tuple(pids), busy)
        self._broker.opportunistic.hold(self._broker.state.holding(), self._broker.samples)

    def ended(self, attempt_id: str, ending: Ending) -> None:
        """The exit was seen: the lease ends."""
        job = self._of(attempt_id)
        if job is None:
            return
        assert job.lease is not None
        broker, lease = self._broker, job.lease
        directory = str(broker.home.runs / attempt_id)
        neighbours = self._neighbours(job, lease)
        outcome = judge(job, ending, directory, neighbours, attempt_id in broker.interrupted)
        broker.interrupted.discard(attempt_id)
        how = how_started(directory) or job.how
        at, tick = broker.clock.wall(), broker.clock.now()
        lent = broker.nested_leases.take_most(attempt_id)
        if lease.device in broker.devices and ending.status is not None:
            kind = broker.devices[lease.device].kind
            needed = _with_lent(outcome, lent)
            broker.work.measured(job, kind, lease.ceiling, needed, _start(job, how), at)
            broker.work.when_written(lambda: self._learned(job))
        broker.strangers.lease_ended(lease.device, lease.charge, tick)
        again = self._second_try(job, lease, outcome)
        if again is None and job.spec.client is None and retry.loops(job, outcome):
            outcome = msgspec.structs.replace(outcome, message=_LOOP)
        event = AttemptEnded(job.id, job.attempt, at, outcome, again, tick, how)
        now = broker.work.happened(event)
        broker.samples.pop(attempt_id, None)
        broker.ends.pop(job.id, None)
        broker.opportunistic.forget(attempt_id)
        broker.work.when_written(lambda: broker.launcher.forget(attempt_id))
        broker.end_inner(job)
        if again is None:
            broker.close_job(now)
        else:
            broker.nested_leases.settle(job.spec.within)
            broker.clients.send(job.id, messages.Retried(outcome, lease, again.least))
            broker.plan_after(again.delay, job.id)

    def never_ran(self, attempt_id: str, why: str) -> None:
        """No line of the program has run: it waits again, and nothing is lost."""
        job = self._of(attempt_id)
        if job is None:
            return
        broker = self._broker
        at, tick = broker.clock.wall(), broker.clock.now()
        broker.work.happened(NeverRan(job.id, job.attempt, at, tick))
        broker.samples.pop(attempt_id, None)
        broker.nested_leases.settle(job.spec.within)
        broker.work.when_written(lambda: broker.launcher.forget(attempt_id))
        stopping = job.holds.stopping if job.holds is not None else ""
        if job.spec.client is None:
            if stopping == "cancelled":
                broker.withdraw(job, "`sublet cancel`", "cancelled")
        elif stopping and job.id not in broker.clients:
            # Its client lives, as that of a pool does, and has hung up on this job.
            broker.withdraw(job, job_clients.GONE)
        elif attempt_id in broker.interrupted:
            broker.withdraw(job, "its user ended it before it began")
        elif broker.closing:
            broker.withdraw(job, broker.DOWN_CAME_FIRST)
        elif not client_lives(job) and (job.id not in broker.clients or job.spec.in_process):
            broker.withdraw(job, job_clients.GONE)
        elif job.id not in broker.clients and job.spec.in_process:
            await_client(broker, job)
        broker.interrupted.discard(attempt_id)

    def nurseries_changed(self) -> None:
        """What could not start may be able to now."""
        self._broker.queue.touch_all()
        self._broker.work.changed = True

    def _learned(self, job: Job) -> None:
        """The ledger knows how this run went: others of the same program are sized by it."""
        self._broker.queue.revise(self._broker.estimator.measured(job))
        self._broker.work.changed = True

    def _second_try(self, job: Job, lease: Lease, outcome: Outcome) -> Again | None:
        """The terms of another attempt, if there is to be one."""
        broker = self._broker
        if job.spec.client is not None and (job.id not in broker.clients or broker.closing):
            return None
        return retry.again(job, outcome, broker.suggest(job, lease, outcome))

    def _neighbours(self, job: Job, lease: Lease) -> tuple[Tenant, ...]:
        """Who else held memory on the job's device, for the story of its end."""
        capacities = (
            capacity for capacity in self._broker.capacities() if capacity.device.id == lease.device
        )
        return tuple(
            one for capacity in capacities for one in capacity.tenants if one.job != job.id
        )

    def _of(self, attempt_id: str) -> Job | None:
        """The live job whose current attempt this is; late news of an old one is no news."""
        job = self._broker.state.get(int(attempt_id.partition(".")[0]))
        return job if job is not None and job.attempt_id == attempt_id else None


def _start(job: Job, how: str) -> str:
    """How it was started: that is part of what a process costs."""
    if job.spec.in_process is not None:
        return "lodger"
    return "warm" if how == "warm" else "cold" if start_of(job) == "cold" else "fresh"


def _with_lent(outcome: Outcome, lent: int) -> Outcome:
    """What a lease was needed for: its program, and what that lent to others."""
    if not lent:
        return outcome
    system = None if outcome.system_peak is None else outcome.system_peak + lent
    return msgspec.structs.replace(outcome, peak=(outcome.peak or 0) + lent, system_peak=system)
