"""What becomes of attempts, as the backend reports it.

A lease ends here and nowhere else, because its attempt was seen to end.
"""

from dataclasses import dataclass
from functools import partial

import msgspec

from sublet.backends.backend import Backend, Ending
from sublet.broker import job_clients
from sublet.broker.device_usage import DeviceUsage, UsageSample
from sublet.broker.effects import ForgetAttempt, Learn
from sublet.broker.events import AttemptEnded, NeverRan, WorkerStarted
from sublet.broker.gangs import Gangs
from sublet.broker.job_clients import JobClients, client_lives
from sublet.broker.job_control import DOWN_CAME_FIRST, JobControl
from sublet.broker.measurements import start_of
from sublet.broker.nested_leases import NestedLeases
from sublet.broker.opportunistic import OpportunisticJobs
from sublet.broker.size_estimates import SizeEstimator
from sublet.broker.unit_of_work import UnitOfWork
from sublet.broker.verdict import Neighbours, judge, judged_elsewhere
from sublet.clock import Clock
from sublet.domain.job import CANCELLED, Again, Job, Outcome, Process, Starting
from sublet.domain.lease import Lease
from sublet.home import Home
from sublet.policy import retry
from sublet.reactor import Reactor
from sublet.wire import messages

_LOOP = f"a crash loop: it ended {retry.LOOP} times in the same way, soon after its start"


@dataclass(eq=False)
class Attempts:
    """What the broker does with reports about attempts; implements `backends.backend.Reports`."""

    _work: UnitOfWork
    _backend: Backend
    _control: JobControl
    _clients: JobClients
    _usage: DeviceUsage
    _nested_leases: NestedLeases
    _estimator: SizeEstimator
    _gangs: Gangs
    _clock: Clock
    _reactor: Reactor
    _home: Home

    def __post_init__(self) -> None:
        self._opportunistic = OpportunisticJobs(self._backend, self._usage.devices)

    def started(self, attempt_id: str, keeper: Process, worker: Process, how: str) -> None:
        """A worker runs; a broker that has adopted it knew that already."""
        job = self._job(attempt_id)
        if job is None or not isinstance(job.holds, Starting):
            return
        at = self._clock.wall()
        self._work.happened(WorkerStarted(job.id, job.attempt, at, keeper, worker, how))
        self._clients.send(job.id, messages.Started(worker.pid, how))

    def sampled(self, attempt_id: str, now: int, peak: int, pids: list[int], busy: float) -> None:
        """What a tree holds and does has changed."""
        self._usage.note_sample(attempt_id, UsageSample(now, peak, tuple(pids), busy))
        self.hold_opportunistic()

    def hold_opportunistic(self) -> None:
        """Confine opportunistic programs anew, if something has changed for them."""
        self._opportunistic.hold(self._work.state.holding(), self._usage.samples)

    def ended(self, attempt_id: str, ending: Ending) -> None:
        """The exit was seen: the lease ends."""
        job = self._job(attempt_id)
        if job is None:
            return
        assert job.lease is not None
        lease, how = job.lease, ending.how or job.how
        directory = str(self._home.runs / attempt_id)
        interrupted = self._control.take_interrupted(attempt_id)
        if ending.outcome is None:
            outcome = judge(job, ending, directory, self._neighbours(job, lease), interrupted)
        else:
            outcome = judged_elsewhere(job, ending, interrupted)
        outcome = self._gangs.judge(job, outcome)
        at, tick = self._clock.wall(), self._clock.now()
        lent = self._nested_leases.take_most(attempt_id)
        device = self._usage.devices.get(lease.device)
        outcome = msgspec.structs.replace(outcome, outside=self._outside(job, lease, outcome))
        # A run that died because others took what it was promised teaches nothing of its needs.
        seen = ending.status is not None and outcome.cause != "lost"
        if device is not None and seen and outcome.cause != "device full":
            needed, start = _with_lent(outcome, lent), _start(job, how)
            self._work.measured(job, device, lease.ceiling, needed, start, at)
            self._work.after_commit(Learn(job))
        self._usage.lease_ended(lease, tick)
        again = self._second_try(job, lease, outcome)
        if again is None and job.spec.client is None and retry.loops(job, outcome):
            outcome = msgspec.structs.replace(outcome, message=_LOOP)
        event = AttemptEnded(job.id, job.attempt, at, outcome, again, tick, how)
        now = self._work.happened(event, ForgetAttempt(attempt_id))
        self._usage.forget(job)
        self._opportunistic.forget(attempt_id)
        self._control.end_inner(job)
        if again is None:
            self._control.close_job(now)
        else:
            self._nested_leases.settle(job.spec.within)
            self._clients.send(job.id, messages.Retried(outcome, lease, again.least))
            if again.delay:
                self._reactor.call_later(again.delay, partial(self._work.touch, job.id))

    def never_ran(self, attempt_id: str, why: str) -> None:
        """No line of the program has run: it waits again, and nothing is lost."""
        job = self._job(attempt_id)
        if job is None:
            return
        at, tick = self._clock.wall(), self._clock.now()
        delay = retry.pause_after_false_start(job)
        again = f"{why}, {job.false_starts + 1} times in a row" if delay else ""
        event = NeverRan(job.id, job.attempt, at, tick, delay, again)
        self._work.happened(event, ForgetAttempt(attempt_id))
        if delay:
            self._reactor.call_later(delay, partial(self._work.touch, job.id))
        self._usage.samples.pop(attempt_id, None)
        self._nested_leases.settle(job.spec.within)
        interrupted = self._control.take_interrupted(attempt_id)
        stopping = job.holds.stopping if job.holds is not None else ""
        present, in_process = job.id in self._clients, job.spec.in_process is not None
        if job.spec.client is None:
            if stopping == CANCELLED:
                self._control.withdraw(job, "`sublet cancel`", CANCELLED)
            elif job.spec.gang is not None:
                self._gangs.start_anew(job)
        elif stopping and not present:
            # Its client lives, as that of a pool does, and has hung up on this job.
            self._control.withdraw(job, job_clients.GONE)
        elif interrupted:
            self._control.withdraw(job, "interrupted before it started")
        elif self._control.closing:
            self._control.withdraw(job, DOWN_CAME_FIRST)
        elif not client_lives(job) and (not present or in_process):
            self._control.withdraw(job, job_clients.GONE)
        elif not present and in_process:
            self._control.await_client(job)

    def nurseries_changed(self) -> None:
        """Jobs that could not start may be able to now."""
        self._work.touch_waiting()

    def _second_try(self, job: Job, lease: Lease, outcome: Outcome) -> Again | None:
        """The terms of another attempt, if there is to be one."""
        gone = job.id not in self._clients or self._control.closing
        if job.spec.client is not None and gone:
            return None
        larger = self._estimator.suggest(job, lease, outcome, self._usage.capacities)
        if job.spec.gang is None:
            return retry.again(job, outcome, larger)
        own = retry.again(self._gangs.count_failures(job), outcome, larger)
        return self._gangs.terms(job, outcome, own)

    def _neighbours(self, job: Job, lease: Lease) -> Neighbours:
        """Who else held memory on the job's device, to explain an out-of-memory."""
        here = [one for one in self._usage.capacities() if lease.on(one.device.id)]
        tenants = [one for capacity in here for one in capacity.tenants if one.job != job.id]
        gpus = [one.device.id for one in here if one.device.kind == "gpu"]
        facts = self._usage.facts() if gpus else {}
        return Neighbours(
            tuple(tenants),
            tuple(holder for gpu in gpus for holder in facts[gpu].holders),
            frozenset(pid for gpu in gpus for pid in self._usage.leased_pids(gpu, job)),
            overfull=any(one.free < 0 for one in here if one.device.kind == "gpu"),
        )

    def _outside(self, job: Job, lease: Lease, outcome: Outcome) -> int | None:
        """What its processes held of a GPU beside their pools: as they have measured it, or more,
        if the whole tree was seen to hold more than that and the ceiling come to."""
        seen = self._usage.most_on_gpu(job)
        beside = 0 if seen is None else seen - max(lease.ceiling, lease.highest)
        return max(outcome.outside or 0, beside) or None

    def _job(self, attempt_id: str) -> Job | None:
        """The live job of a current attempt; None if the attempt is over."""
        job = self._work.state.get(int(attempt_id.partition(".")[0]))
        return job if job is not None and job.attempt_id == attempt_id else None


def _start(job: Job, how: str) -> str:
    """How it was started: that is part of what a process costs."""
    if job.spec.in_process is not None:
        return start_of(job)
    return "warm" if how == "warm" else "cold" if start_of(job) == "cold" else "fresh"


def _with_lent(outcome: Outcome, lent: int) -> Outcome:
    """What a lease was needed for: its program, and what that lent to others."""
    if not lent:
        return outcome
    system = None if outcome.system_peak is None else outcome.system_peak + lent
    return msgspec.structs.replace(outcome, peak=(outcome.peak or 0) + lent, system_peak=system)
