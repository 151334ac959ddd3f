"""The broker's knowledge as rows, for people and programs that look."""

from sublet.backends.local.nurseries import Nursery
from sublet.broker.device_usage import UsageSample, in_use
from sublet.domain.device import DeviceFacts
from sublet.domain.job import Finished, Job, Paused, Running, Starting, Waiting
from sublet.formats.usage_file import read_usage
from sublet.home import Home
from sublet.policy.capacity import Capacity
from sublet.policy.retry import advice, ending
from sublet.units import format_seconds
from sublet.wire.rows import DeviceRow, JobRow, LeaseRow, NurseryRow, WaitingRow


def device_rows(capacities: tuple[Capacity, ...]) -> tuple[DeviceRow, ...]:
    """How full each device is."""
    return tuple(
        DeviceRow(
            device=capacity.device,
            leased=sum(one.charge for one in capacity.holdings),
            strangers=capacity.strangers,
            standing=capacity.standing,
            free=max(0, capacity.free),
        )
        for capacity in capacities
        if capacity.within is None
    )


def lease_rows(
    holding: list[Job], facts: dict[str, DeviceFacts], samples: dict[str, UsageSample], home: Home
) -> tuple[LeaseRow, ...]:
    """Who holds what."""
    return tuple(_lease_row(job, facts, samples, home) for job in holding)


def waiting_rows(waiting: list[Job], outcome: dict[int, str]) -> tuple[WaitingRow, ...]:
    """Who waits for what."""
    return tuple(
        WaitingRow(
            job=job.id,
            name=job.spec.name,
            memory=str(job.spec.memory),
            device=job.spec.device,
            since=job.state.since,
            reason=outcome.get(job.id, "it has just come"),
            foreground=job.spec.client is not None,
        )
        for job in waiting
        if isinstance(job.state, Waiting)
    )


def nursery_rows(nurseries: list[Nursery]) -> tuple[NurseryRow, ...]:
    """The warm processes, and why one is not."""
    return tuple(
        NurseryRow(
            python=nursery.key.python,
            state=f"off: {nursery.why}" if nursery.state == "off" else nursery.state,
            pid=None if nursery.state == "off" else nursery.pid,
            tensorflow=nursery.tensorflow,
            holds=nursery.holds,
        )
        for nursery in nurseries
    )


def state_name(job: Job) -> str:
    """The state in one word."""
    if isinstance(job.state, Starting | Running) and job.state.stopping:
        return "stopping"
    return type(job.state).__name__.lower()


def job_row(
    job: Job,
    reason: str,
    starts_in: float | None,
    ends_in: float,
    sample: UsageSample | None,
    home: Home,
    larger: int | None = None,
) -> JobRow:
    """One job, live or finished. `ends_in` counts where it is above 0; `larger` is a ceiling that
    could be given to one that ran out of memory."""
    spec, state, held = job.spec, job.state, job.holds
    outcome = state.outcome if isinstance(state, Finished) else None
    lease = state.lease if isinstance(state, Finished) else job.lease
    usages = read_usage(str(home.runs / job.attempt_id)) if held is not None else []
    running = held if isinstance(held, Running) else None
    if outcome is not None:
        how = reason = ending(outcome)
        if outcome.cause == "time limit" and spec.time is not None:
            reason += f" of {format_seconds(spec.time)}"
        if outcome.message and outcome.message != how:
            reason += f": {outcome.message.splitlines()[0]}"
        if outcome.cause == "lease exceeded":
            reason += f"; {advice(job, larger)}"
    elif held is not None:
        reason = held.stopping
    elif isinstance(state, Paused):
        reason = f"`sublet resume {job.id}` lets it go on"
    return JobRow(
        id=job.id,
        name=spec.name,
        state=state_name(job),
        reason=reason,
        submitted=job.submitted,
        attempt=job.attempt,
        attempt_id=job.attempt_id,
        priority=spec.priority,
        service=spec.service,
        memory=str(spec.memory),
        starts_in=starts_in,
        ends_in=ends_in if ends_in > 0 and isinstance(state, Running) else None,
        device=lease.device if lease else spec.device,
        ceiling=lease.ceiling if lease else None,
        charge=lease.charge if lease else None,
        basis=lease.basis if lease else "",
        now=sum(usage.current for usage in usages) if usages else None,
        peak=outcome.peak if outcome else (sum(usage.peak for usage in usages) if usages else None),
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
        array=spec.task.array if spec.task else None,
        index=spec.task.index if spec.task else None,
        after=(*spec.after, *spec.after_ok),
        split=spec.split,
        foreground=spec.client is not None,
        within=spec.within,
    )


def _lease_row(
    job: Job, facts: dict[str, DeviceFacts], samples: dict[str, UsageSample], home: Home
) -> LeaseRow:
    state = job.holds
    assert state is not None
    lease = state.lease
    fact = facts.get(lease.device)
    held = in_use(job, fact, samples) if fact is not None else None
    usages = read_usage(str(home.runs / job.attempt_id))
    running = state if isinstance(state, Running) else None
    return LeaseRow(
        job=job.id,
        attempt=job.attempt,
        name=job.spec.name,
        state=state_name(job),
        device=lease.device,
        ceiling=lease.ceiling,
        charge=lease.charge,
        now=sum(usage.current for usage in usages) if usages else None,
        peak=sum(usage.peak for usage in usages) if usages else None,
        since=state.since,
        pid=running.worker.pid if running else None,
        how=running.how if running else "starting",
        basis=lease.basis,
        over=held is not None and held > lease.charge,
        in_process=job.spec.in_process is not None,
        within=job.spec.within,
    )
