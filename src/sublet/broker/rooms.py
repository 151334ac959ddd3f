"""How full each device is: the devices' facts, the leases, and what was measured, joined.

A lease counts with its charge or with what it really holds, whichever is more. What nobody here
holds belongs to strangers. The three never add up to more than the capacity without `free`
turning negative.
"""

from msgspec import Struct

from sublet.domain.device import DeviceFacts
from sublet.domain.job import Job, Running, Tenant
from sublet.policy.admission import Room


class Sample(Struct, frozen=True):
    """What a worker's tree was last seen to hold in main memory."""

    now: int
    peak: int
    pids: tuple[int, ...]


def rooms(
    facts: dict[str, DeviceFacts],
    holding: list[Job],
    samples: dict[str, Sample],
    standing: int,
) -> tuple[Room, ...]:
    """One room for each device. `standing` is what the nurseries hold, on the CPU device.

    A worker's sample leaves out the pages it shares with its nursery, so nothing counts twice.
    """
    return tuple(
        _gpu_room(fact, holding, samples)
        if fact.device.kind == "gpu"
        else _cpu_room(fact, holding, samples, standing)
        for fact in facts.values()
    )


def in_use(job: Job, facts: DeviceFacts, samples: dict[str, Sample]) -> int | None:
    """What a job's tree holds on its device now, if anybody could see."""
    sample = samples.get(job.run)
    if facts.device.kind == "cpu":
        return None if sample is None else sample.now
    pids = _pids(job, samples)
    amounts = [h.bytes for h in facts.holders if h.pid in pids and h.bytes is not None]
    return sum(amounts) if amounts else None


def _cpu_room(
    facts: DeviceFacts,
    holding: list[Job],
    samples: dict[str, Sample],
    standing: int,
) -> Room:
    device = facts.device
    here = [job for job in holding if job.lease is not None and job.lease.device == device.id]
    ours = standing + sum(in_use(job, facts, samples) or 0 for job in here)
    strangers = max(0, device.capacity - (facts.available + ours))
    tenants = _tenants(here, facts, samples)
    held = sum(tenant.bytes for tenant in tenants)
    free = device.capacity - held - standing - strangers
    return Room(device, free, standing, strangers, tenants)


def _gpu_room(facts: DeviceFacts, holding: list[Job], samples: dict[str, Sample]) -> Room:
    device = facts.device
    here = [job for job in holding if job.lease is not None and job.lease.device == device.id]
    ours = sum(_on_gpu(job, facts, samples) for job in here)
    strangers = max(0, facts.used - ours)
    tenants = _tenants(here, facts, samples)
    free = device.capacity - sum(tenant.bytes for tenant in tenants) - strangers
    return Room(device, free, 0, strangers, tenants)


def _on_gpu(job: Job, facts: DeviceFacts, samples: dict[str, Sample]) -> int:
    """What of the device's use is this job's. Where the driver shows the process and not its
    bytes, the charge is the best guess: otherwise the job would count twice."""
    known = in_use(job, facts, samples)
    if known is not None or job.lease is None:
        return known or 0
    pids = _pids(job, samples)
    return job.lease.charge if any(holder.pid in pids for holder in facts.holders) else 0


def _tenants(here: list[Job], facts: DeviceFacts, samples: dict[str, Sample]) -> tuple[Tenant, ...]:
    return tuple(
        Tenant(job.spec.name, max(job.lease.charge, in_use(job, facts, samples) or 0), job.id)
        for job in here
        if job.lease is not None
    )


def _pids(job: Job, samples: dict[str, Sample]) -> set[int]:
    sample = samples.get(job.run)
    pids = set(sample.pids) if sample is not None else set()
    if isinstance(job.holds, Running):
        pids.add(job.holds.worker.pid)
    return pids
