"""The broker's knowledge as rows, for people and programs that look. Changes nothing."""

import itertools
import os
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import sublet
from sublet.backends.backend import Backend
from sublet.broker.device_usage import DeviceUsage, in_use, used
from sublet.broker.job_actions import whole
from sublet.broker.queue import Queue
from sublet.broker.size_estimates import SizeEstimator
from sublet.broker.unit_of_work import UnitOfWork
from sublet.clock import Clock
from sublet.domain.device import DeviceFacts
from sublet.domain.job import Finished, Job, Outcome, Paused, Running, Starting, Waiting
from sublet.domain.lease import Lease
from sublet.formats import fence_file, fence_library
from sublet.formats.usage_file import Reading, card_sums, read_usage, tree_peak
from sublet.home import Home
from sublet.policy.retry import advice, ending
from sublet.policy.wait_reasons import Reasons
from sublet.units import format_seconds
from sublet.wire import messages
from sublet.wire.metrics import STATES, Counts, Metrics
from sublet.wire.rows import CardRow, DeviceRow, JobRow, LeaseRow, WaitingRow

_REMEMBERED = 100
"""So many of those that ended last are known in the order of their ends."""
_MOST_SHOWN = 100
"""So many of those who wait are in a snapshot; `sublet ps` has them all."""
_BLIND = (
    "the driver does not say what single processes hold, as in some containers; what they cost "
    "beside their ceilings is estimated"
)
_JUST_CAME = "just submitted"
_WAITS_FOR_GANG = "starts again when all tasks of its cluster have ended"
_NO_FENCE = "the fence is off (`--fence`)"


class RecentlyEnded:
    """The jobs that ended last. A pool's workers are not remembered: they are too many, and the
    owner of the pool has been told."""

    def __init__(self, work: UnitOfWork) -> None:
        self._work = work

    def note(self, job: Job) -> None:
        """Note that this job has finished."""
        if not job.spec.is_pools:
            self._numbers.append(job.id)

    def latest(self, count: int) -> list[Job]:
        """The jobs that ended last, in that order; of more than are remembered, those that came
        last."""
        if count > _REMEMBERED:
            return self._work.ledger.latest(count)
        numbers = list(dict.fromkeys(reversed(self._numbers)))
        found = (self._work.find(number) for number in numbers)
        ended = (job for job in found if job is not None and isinstance(job.state, Finished))
        return list(itertools.islice(ended, count))[::-1]

    @cached_property
    def _numbers(self) -> deque[int]:
        """Oldest first; of those that an earlier broker saw end, those that came last."""
        before = self._work.ledger.latest(10 * _REMEMBERED)
        return deque((job.id for job in before if not job.spec.is_pools), _REMEMBERED)


@dataclass(eq=False)
class Snapshots:
    """Draws rows when somebody asks."""

    _work: UnitOfWork
    _usage: DeviceUsage
    _queue: Queue
    _backend: Backend
    _estimator: SizeEstimator
    _clock: Clock
    _home: Home
    _recently_ended: RecentlyEnded
    _lacking: Mapping[int, str]
    """What allocations wait for, by job."""
    _findings: Mapping[int, str]
    """What is wrong with tasks of clusters, by job."""

    def __post_init__(self) -> None:
        self._state = self._work.state
        self._began = self._clock.wall()

    def snapshot(self) -> messages.Snapshot:
        """Devices, leases, the first of those who wait, and nurseries, as they are now."""
        facts = self._usage.facts()
        return messages.Snapshot(
            version=sublet.__version__,
            pid=os.getpid(),
            home=str(self._home.path),
            up=self._clock.wall() - self._began,
            driver=self._usage.driver,
            devices=self.devices(),
            leases=tuple(self._lease_row(job, facts) for job in self._state.holding()),
            waiting=self._waiting_rows(),
            nurseries=self._backend.nurseries(),
            waits=len(self._queue.wait_queue),
        )

    def metrics(self, counts: Counts) -> Metrics:
        """What a monitoring system asks for every few seconds: no rows of jobs, no reasons."""
        states = Counter(map(state_name, self._state.jobs()))
        waiting = (job.state for job in self._state.waiting())
        since = min((one.since for one in waiting if isinstance(one, Waiting)), default=None)
        nurseries = Counter(row.state.partition(":")[0] for row in self._backend.nurseries())
        return Metrics(
            version=sublet.__version__,
            pid=os.getpid(),
            began=self._began,
            devices=self.devices(),
            jobs={state: states[state] for state in STATES},
            nurseries=dict(nurseries),
            longest_wait=0.0 if since is None else max(0.0, self._clock.wall() - since),
            counts=counts,
        )

    def devices(self) -> tuple[DeviceRow, ...]:
        """How full each device is."""
        facts = self._usage.facts()
        return tuple(
            DeviceRow(
                device=capacity.device,
                leased=sum(one.charge for one in capacity.holdings),
                strangers=capacity.strangers,
                standing=capacity.standing,
                free=max(0, capacity.free),
                fault=capacity.fault,
                note=self._note(facts.get(capacity.device.id)),
                used=self._used(facts.get(capacity.device.id)),
            )
            for capacity in self._usage.capacities()
            if capacity.within is None
        )

    def _used(self, facts: DeviceFacts | None) -> int:
        """What the programs with leases hold of a device."""
        if facts is None:
            return 0
        here = [job for job in self._state.holding() if job.lease_on(facts.device.id) is not None]
        return sum(used(job, facts, self._usage.samples, self._home.runs) for job in here)

    def _note(self, facts: DeviceFacts | None) -> str:
        """What the driver of a device does not say."""
        if facts is None:
            return ""
        here = [job for job in self._state.holding() if job.lease_on(facts.device.id) is not None]
        blind = facts.device.kind == "gpu" and any(
            any(usage.runtime_started_ns and usage.peak for usage in self._usages(job))
            and in_use(job, facts, self._usage.samples) is None
            for job in here
        )
        return _BLIND if blind else ""

    def _usages(self, job: Job) -> list[Reading]:
        return read_usage(str(self._home.runs / job.attempt_id))

    def rows(self, numbers: tuple[int, ...], live: int, finished: int) -> messages.Jobs:
        """These jobs; without numbers, as many live ones and as many that ended last."""
        if numbers:
            found = [self._work.job(number) for number in dict.fromkeys(numbers)]
            return messages.Jobs(self._rows(found))
        jobs = self._state.holding()
        held = len(jobs)
        jobs += self._first_waiting(live)
        jobs += [job for job in self._state.paused() if job.holds is None]
        ended = self._recently_ended.latest(finished)
        left_out = len(self._state) - len(jobs[:live])
        shown = self._rows([*ended, *jobs[:live]])
        return messages.Jobs(shown, held, len(self._state) - held, left_out)

    def row(self, number: int) -> JobRow:
        """One job as it is now."""
        return self._rows([self._work.job(number)])[0]

    def _rows(self, jobs: list[Job]) -> tuple[JobRow, ...]:
        queue, now = self._queue.wait_queue, self._clock.now()
        waiting = list(dict.fromkeys(place for job in jobs if (place := queued_as(job)) in queue))
        reasons = Reasons(self._usage.capacities(), queue, now, waiting) if waiting else None
        return tuple(
            self._job_row(job, now, reasons if queued_as(job) in queue else None) for job in jobs
        )

    def _job_row(self, job: Job, now: float, reasons: Reasons | None) -> JobRow:
        spec, state, held, gang = job.spec, job.state, job.holds, job.spec.gang
        outcome = state.outcome if isinstance(state, Finished) else None
        lease = state.lease if isinstance(state, Finished) else job.lease
        usages = read_usage(str(self._home.runs / job.attempt_id)) if held is not None else []
        running = held if isinstance(held, Running) else None
        sample = self._usage.samples.get(job.attempt_id)
        ends_in = self._usage.expected_ends.get(job.id, now) - now
        return JobRow(
            id=job.id,
            name=spec.name,
            state=state_name(job),
            reason=self._reason(job, reasons),
            submitted=job.submitted,
            attempt=job.attempt,
            attempt_id=job.attempt_id,
            priority=spec.priority,
            service=spec.service,
            memory=str(spec.memory),
            starts_in=reasons.start(queued_as(job)) if reasons else None,
            ends_in=ends_in if ends_in > 0 and isinstance(state, Running) else None,
            device=lease.device if lease else spec.device,
            ceiling=lease.ceiling if lease else None,
            charge=lease.charge if lease else None,
            floor=(lease.floor or lease.ceiling) if lease else None,
            highest=max(lease.highest, lease.ceiling) if lease else None,
            basis=lease.basis if lease else "",
            now=sum(usage.current for usage in usages) if usages else None,
            peak=outcome.peak if outcome else (tree_peak(usages) if usages else None),
            system_peak=outcome.system_peak if outcome else (sample.peak if sample else None),
            since=state.at if isinstance(state, Finished) else state.since,
            ran=outcome.ran if outcome else None,
            waited=outcome.waited if outcome else (held.waited if held else None),
            time=spec.time,
            pid=running.worker.pid if running else None,
            how=job.how,
            code=outcome.code if outcome else None,
            cause=outcome.cause if outcome else None,
            by_user=outcome is not None and outcome.by_user,
            error=outcome.error if outcome else None,
            script=spec.script,
            array=spec.task.array if spec.task else None,
            index=spec.task.index if spec.task else None,
            after=(*spec.after, *spec.after_ok),
            split=spec.split,
            foreground=spec.client is not None,
            within=spec.within,
            cards=_cards(lease, usages, outcome),
            gang=tuple(gang.numbers) if gang else (),
            role=gang.role if gang else "",
            role_index=gang.index if gang else None,
            port=lease.ports[gang.at] if gang and lease and gang.role != "evaluator" else None,
        )

    def _reason(self, job: Job, reasons: Reasons | None) -> str:
        """What a job waits for, how it ended, why it is being stopped, or what is wrong with it."""
        match job.state:
            case Finished(outcome=outcome, lease=lease):
                larger = self._estimator.suggest(job, lease, outcome, self._usage.capacities)
                return _how_it_ended(job, outcome, larger)
            case Paused(was=Waiting()):
                return f"resume it with `sublet resume {job.id}`"
        if job.holds is not None:
            found = self._lacking.get(job.id) or self._findings.get(job.id, "")
            return job.holds.stopping or found
        if reasons is not None:
            return reasons.why(queued_as(job))
        return _JUST_CAME if job.spec.gang is None or job.attempt == 1 else _WAITS_FOR_GANG

    def _lease_row(self, job: Job, facts: dict[str, DeviceFacts]) -> LeaseRow:
        state = job.holds
        assert state is not None
        lease = state.lease
        over = any(
            (fact := facts.get(one.device)) is not None
            and (in_use(job, fact, self._usage.samples) or 0) > one.charge
            for one in lease.all
        )
        usages = read_usage(str(self._home.runs / job.attempt_id))
        running = state if isinstance(state, Running) else None
        return LeaseRow(
            job=job.id,
            attempt=job.attempt,
            name=job.spec.name,
            state=state_name(job),
            device=lease.device,
            ceiling=lease.ceiling,
            charge=lease.charge,
            floor=lease.floor or lease.ceiling,
            highest=max(lease.highest, lease.ceiling),
            most=max(lease.most, lease.ceiling),
            now=sum(usage.current for usage in usages) if usages else None,
            peak=tree_peak(usages) if usages else None,
            since=state.since,
            pid=running.worker.pid if running else None,
            how=running.how if running else "starting",
            basis=lease.basis,
            over=over,
            in_process=job.spec.in_process is not None,
            within=job.spec.within,
            cards=_cards(lease, usages),
            unfenced=self._unfenced(job, lease) if _is_gpu(facts.get(lease.device)) else "",
        )

    def _unfenced(self, job: Job, lease: Lease) -> str:
        if fence_file.exists(str(self._home.runs / job.attempt_id)):
            return ""
        asked = job.spec.fence
        if job.spec.in_process is not None:
            return "no fence holds a process that was there before its lease"
        if lease.also and asked:
            return fence_library.ONE_GPU
        return fence_library.why_unusable(asked) if asked.startswith("/") else asked or _NO_FENCE

    def _waiting_rows(self) -> tuple[WaitingRow, ...]:
        jobs = self._first_waiting(_MOST_SHOWN)
        numbers = list(dict.fromkeys(map(queued_as, jobs)))
        queue, now = self._queue.wait_queue, self._clock.now()
        reasons = Reasons(self._usage.capacities(), queue, now, numbers)
        return tuple(
            WaitingRow(
                job=job.id,
                name=job.spec.name,
                memory=str(job.spec.memory),
                device=job.spec.device,
                since=job.state.since,
                reason=reasons.why(queued_as(job)),
                foreground=job.spec.client is not None,
            )
            for job in jobs
            if isinstance(job.state, Waiting)
        )

    def _first_waiting(self, count: int) -> list[Job]:
        """The jobs that waited at the last plan and still do."""
        candidates = itertools.islice(self._queue.wait_queue, count)
        firsts = (self._state.get(candidate.job) for candidate in candidates)
        jobs = (self._state.get(number) for job in firsts if job for number in whole(job))
        return [job for job in jobs if job is not None]


def _cards(
    lease: Lease | None, usages: list[Reading], outcome: Outcome | None = None
) -> tuple[CardRow, ...]:
    """The leases of a job with several GPUs; none for any other."""
    if lease is None or not lease.also:
        return ()
    used: list[tuple[int | None, int | None]] = [(None, None)] * len(lease.all)
    if outcome is not None and outcome.peaks:
        used = [(None, peak) for peak in outcome.peaks]
    elif (known := card_sums(usages, len(lease.all))) is not None:
        used = list(known)
    return tuple(
        CardRow(one.device, one.ceiling, one.charge, now, peak)
        for one, (now, peak) in zip(lease.all, used, strict=True)
    )


def queued_as(job: Job) -> int:
    """The number under which it stands in the queue: a gang has one for all of its jobs."""
    return job.id if job.spec.gang is None else job.spec.gang.first


def state_name(job: Job) -> str:
    """A job's state in one word."""
    if isinstance(job.state, Starting | Running) and job.state.stopping:
        return "stopping"
    return type(job.state).__name__.lower()


def _how_it_ended(job: Job, outcome: Outcome, larger: int | None) -> str:
    """`larger` is a ceiling that could be given to a job that ran out of memory."""
    how = reason = ending(outcome)
    if outcome.cause == "time limit" and job.spec.time is not None:
        reason += f" of {format_seconds(job.spec.time)}"
    if outcome.message and outcome.message != how:
        reason += f": {outcome.message.splitlines()[0]}"
    if outcome.cause == "lease exceeded":
        reason += f"; {advice(job, larger)}"
    return reason


def _is_gpu(fact: DeviceFacts | None) -> bool:
    return fact is not None and fact.device.kind == "gpu"
