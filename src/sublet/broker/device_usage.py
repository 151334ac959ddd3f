"""How full each device is: the devices' facts, the leases, and what was measured, joined.

A lease counts from its grant on, with its charge or with what it really holds, whichever is more.
What nobody here holds belongs to strangers. The three never add up to more than the capacity
without `free` turning negative.

What strangers take counts at once; what they give back counts only after it has stayed free for
`SETTLING` seconds, because a program that has just let go may be between two steps. Memory that
could as well be ours (a lease that has just ended and that the driver still shows, or one that grew
since it was last looked at) is not free either as long as it is shown, but it is no stranger's and
so does not have to settle.

A lease within another counts there and not on the device: the device counts the outer one once,
with its charge, or with what its program and the leases within it come to where that is more.
"""

from collections import deque
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from sublet.backends.backend import Backend
from sublet.broker.nested_leases import NestedLeases
from sublet.broker.size_estimates import SizeEstimator
from sublet.broker.state import State
from sublet.clock import Clock
from sublet.devices import Probe
from sublet.domain.device import DeviceFacts
from sublet.domain.job import Job, Paused, Running
from sublet.domain.lease import Lease
from sublet.domain.nursery import Nursery
from sublet.formats.usage_file import card_sums, read_usage
from sublet.policy.capacity import Capacity, Holding

SETTLING = 5.0
"""Seconds for which what strangers gave back must stay free before it is given away."""


class UsageSample(Struct, frozen=True):
    """What a worker's tree was last seen to hold in main memory, and of its GPU."""

    now: int
    peak: int
    pids: tuple[int, ...]
    busy: float | None = None
    """How many processors it kept busy; None after a pause, until it is looked at again."""
    on_gpu: int = 0
    """The most that it was seen to hold of its GPU."""


class Strangers:
    """Remembers what strangers held on each device in the last seconds."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, int]]] = {}
        self._ended: dict[str, deque[tuple[float, int]]] = {}

    def lease_ended(self, device: str, charge: int, now: float) -> None:
        """The driver may go on showing this lease's memory for a moment."""
        self._ended.setdefault(device, deque()).append((now, charge))

    def settled(self, device: str, shown: int, ours: int, now: float) -> int:
        """What counts as strangers', if the system shows `shown` bytes that no lease accounts for.

        Up to `ours` of them may belong to a lease that grew since it was last looked at.
        """
        ended = _recent(self._ended.setdefault(device, deque()), now)
        foreign = max(0, shown - ours - sum(charge for _, charge in ended))
        seen = self._seen.setdefault(device, deque())
        # Only what is larger than all that came after it can still matter.
        while seen and seen[-1][1] <= foreign:
            seen.pop()
        seen.append((now, foreign))
        return max(shown, _recent(seen, now)[0][1])


def _recent(history: deque[tuple[float, int]], now: float) -> deque[tuple[float, int]]:
    while history and history[0][0] <= now - SETTLING:
        history.popleft()
    return history


def capacities(
    facts: dict[str, DeviceFacts],
    holding: list[Job],
    samples: dict[str, UsageSample],
    nurseries: tuple[Nursery, ...],
    strangers: Strangers | None = None,
    now: float = 0.0,
    ends: Mapping[int, float] | None = None,
    lenders: Mapping[int, int] | None = None,
    processes: Mapping[str, int] | None = None,
) -> tuple[Capacity, ...]:
    """A capacity for each device, and for each lease within which others may be: `lenders` says of
    whose leases, and what TensorFlow has taken of them for the program itself.

    The nurseries are on the CPU device.

    A worker's sample leaves out the pages it shares with its nursery, so nothing counts twice.
    Without a memory of strangers, what they hold at this moment counts. `ends` says when jobs are
    expected to end, in monotonic time; `processes` how many of an attempt use TensorFlow.
    """
    tenants = _Tenants(holding, samples, ends or {}, processes or {})
    devices = [
        _capacity(fact, tenants, nurseries if fact.device.id == "cpu" else (), strangers, now)
        for fact in facts.values()
    ]
    leases = [
        _lease_capacity(facts[job.lease.device], tenants, job, taken)
        for job in holding
        if job.lease is not None
        and job.lease.device in facts
        and (taken := (lenders or {}).get(job.id)) is not None
    ]
    return (*devices, *leases)


def in_use(job: Job, facts: DeviceFacts, samples: dict[str, UsageSample]) -> int | None:
    """What a job's tree holds on its device now, if anybody could see."""
    sample = samples.get(job.attempt_id)
    if facts.device.on:
        return None  # What runs here for it is its relay.
    if facts.device.kind == "cpu":
        return None if sample is None else sample.now
    pids = _pids(job, samples)
    amounts = [h.bytes for h in facts.holders if h.pid in pids and h.bytes is not None]
    return sum(amounts) if amounts else None


def used(job: Job, facts: DeviceFacts, samples: dict[str, UsageSample], runs: Path) -> int:
    """The same; where the driver does not say or nobody has looked yet, what TensorFlow has taken
    there. `runs` has the attempts' directories."""
    known, lease = in_use(job, facts, samples), job.lease_on(facts.device.id)
    if known is not None or lease is None or job.lease is None:
        return known or 0
    sums = card_sums(read_usage(str(runs / job.attempt_id)), len(job.lease.all))
    return sums[job.lease.all.index(lease)][0] if sums is not None else 0


class DeviceUsage:
    """What is in use on the devices at this moment; plans and snapshots start from it."""

    def __init__(
        self,
        probe: Probe,
        state: State,
        backend: Backend,
        nested_leases: NestedLeases,
        estimator: SizeEstimator,
        clock: Clock,
    ) -> None:
        self.devices = estimator.devices
        self.samples: dict[str, UsageSample] = {}
        """What the attempts' trees were last seen to use, by attempt id."""
        self.expected_ends: dict[int, float] = {}
        """When the jobs that run are expected to end, in monotonic time."""
        self.processes: dict[str, int] = {}
        """How many processes of each attempt use TensorFlow, by attempt id."""
        self._probe = probe
        self._state = state
        self._backend = backend
        self._nested_leases = nested_leases
        self._estimator = estimator
        self._clock = clock
        self._strangers = Strangers()

    @property
    def driver(self) -> str:
        """The version of the GPU driver."""
        return self._probe.driver

    def facts(self) -> dict[str, DeviceFacts]:
        """What the system says of each device now. One that was found only now is a device from
        here on."""
        facts = self._probe.facts()
        for name, fact in facts.items():
            self.devices.setdefault(name, fact.device)
        return facts

    def note_sample(self, attempt_id: str, sample: UsageSample) -> None:
        """What a tree was measured to hold; of a GPU, the driver knows."""
        before = self.samples.get(attempt_id)
        self.samples[attempt_id] = sample
        job = self._state.get(int(attempt_id.partition(".")[0]))
        device = None if job is None or job.lease is None else self.devices.get(job.lease.device)
        if job is None or device is None or device.kind != "gpu" or device.on:
            return
        held = in_use(job, self._probe.facts()[device.id], self.samples) or 0
        most = max(held, before.on_gpu if before is not None else 0)
        self.samples[attempt_id] = replace(sample, on_gpu=most)

    def most_on_gpu(self, job: Job) -> int | None:
        """The most that the job's tree was seen to hold of its GPU; None if it never was."""
        sample = self.samples.get(job.attempt_id)
        return sample.on_gpu or None if sample is not None else None

    def leased_pids(self, device: str, but: Job) -> frozenset[int]:
        """The processes of the jobs with leases on this device, but for one of them."""
        here = (job for job in self._state.holding() if job.lease_on(device) is not None)
        return frozenset(
            pid for job in here if job.id != but.id for pid in _pids(job, self.samples)
        )

    def capacities(self, *outer: int) -> tuple[Capacity, ...]:
        """How full the devices are now, and the leases with others within. `outer` are jobs whose
        leases are wanted though nobody is within yet."""
        return capacities(
            self.facts(),
            self._state.holding(),
            self.samples,
            self._backend.standing_nurseries(),
            self._strangers,
            self._clock.now(),
            self.expected_ends,
            self._nested_leases.lenders(*outer),
            self.processes,
        )

    @property
    def standing(self) -> int:
        """What the nurseries hold, or will when they are warm."""
        return sum(one.holds for one in self._backend.standing_nurseries())

    def expect_end(self, job: Job, since: float) -> None:
        """Its lease was granted then: note when the job is likely to end, if anybody can tell."""
        expected = self._estimator.expected(job)
        if expected is not None:
            self.expected_ends[job.id] = since + expected

    def needed(self, job: Job) -> int:
        """The ceiling below which this job is not trimmed."""
        return self._estimator.needed(job)

    def is_enough(self, job: Job) -> bool:
        """Whether earlier runs show that its ceiling is all that this job needs."""
        return self._estimator.is_enough(job)

    def lease_ended(self, lease: Lease, now: float) -> None:
        """The driver may go on showing this lease's memory for a moment."""
        for one in lease.all:
            self._strangers.lease_ended(one.device, one.charge, now)

    def forget(self, job: Job) -> None:
        """Stop counting the job's current attempt, which is over."""
        self.samples.pop(job.attempt_id, None)
        self.processes.pop(job.attempt_id, None)
        self.expected_ends.pop(job.id, None)

    def forget_pace(self, attempt_id: str) -> None:
        """A tree goes on after a pause: how busy it was before says nothing of what it does now."""
        if (sample := self.samples.get(attempt_id)) is not None:
            self.samples[attempt_id] = replace(sample, busy=None)


class _Tenants:
    """Who holds leases now, and out of which other leases."""

    def __init__(
        self,
        holding: list[Job],
        samples: dict[str, UsageSample],
        ends: Mapping[int, float],
        processes: Mapping[str, int],
    ) -> None:
        self.samples = samples
        self._processes = processes
        self._ends = ends
        live = {job.id for job in holding}
        self._inner: dict[int | None, list[Job]] = {}
        for job in holding:
            # One whose outer lease has ended before it counts on the device, like any other.
            outer = job.spec.within if job.spec.within in live else None
            self._inner.setdefault(outer, []).append(job)
        self.everyone = holding

    def of(self, outer: int | None, facts: DeviceFacts) -> tuple[Holding, ...]:
        """Those on this device that are within the lease of a job, or within none."""
        return tuple(
            Holding(
                job=job.id,
                charge=self._counts(job, facts),
                name=job.spec.name,
                service=job.spec.service,
                since=job.holds.tick if job.holds is not None else None,
                end=None if isinstance(job.state, Paused) else self._ends.get(job.id),
                stopping=job.holds is not None and bool(job.holds.stopping),
            )
            for job in self._inner.get(outer, ())
            if job.lease_on(facts.device.id) is not None
        )

    def within(self, job: Job, facts: DeviceFacts) -> int:
        """What the leases within this job's come to."""
        return sum(one.charge for one in self.of(job.id, facts))

    def _counts(self, job: Job, facts: DeviceFacts) -> int:
        lease = job.lease_on(facts.device.id)
        assert lease is not None
        own = in_use(job, facts, self.samples) or 0
        charge = lease.charge
        if facts.device.kind == "gpu":
            # The lease is charged with what one process costs beside its pool.
            more = max(0, self._processes.get(job.attempt_id, 0) - 1)
            charge += more * (lease.charge - lease.ceiling)
        return max(charge, own + self.within(job, facts))


def _capacity(
    facts: DeviceFacts,
    tenants: _Tenants,
    nurseries: tuple[Nursery, ...],
    strangers: Strangers | None,
    now: float,
) -> Capacity:
    device = facts.device
    here = [job for job in tenants.everyone if job.lease_on(device.id) is not None]
    if device.on:
        # The node's own broker says what others hold there.
        seen, used = 0, facts.used
    elif device.kind == "gpu":
        seen = sum(_on_gpu(job, facts, tenants) for job in here)
        used = facts.used
    else:
        seen = sum(in_use(job, facts, tenants.samples) or 0 for job in here)
        used = device.capacity - facts.available
    holdings = tenants.of(None, facts)
    if facts.fault is not None:
        # Its leases stay until exits are seen, and nothing would be free if they ended.
        held = sum(one.charge for one in holdings)
        return Capacity(device, -held, (), 0, holdings, fault=facts.fault)
    standing = sum(one.holds for one in nurseries)
    shown = max(0, used - standing - seen)
    if strangers is not None and not device.on:
        unseen = max(0, sum(one.charge for one in holdings) - seen)
        shown = strangers.settled(device.id, shown, unseen, now)
    free = device.capacity - sum(one.charge for one in holdings) - standing - shown
    return Capacity(device, free, nurseries, shown, holdings)


def _lease_capacity(facts: DeviceFacts, tenants: _Tenants, outer: Job, taken: int) -> Capacity:
    """What is left of a lease for others. Its program has what TensorFlow has taken of it, and what
    its processes hold beyond what they were charged for beside it."""
    assert outer.lease is not None
    ceiling, beside = outer.lease.ceiling, outer.lease.charge - outer.lease.ceiling
    own = max(taken, (in_use(outer, facts, tenants.samples) or 0) - beside, 0)
    inner = tenants.of(outer.id, facts)
    device = replace(
        facts.device, id=f"the lease of #{outer.id}", capacity=ceiling, source="a lease"
    )
    free = ceiling - own - sum(one.charge for one in inner)
    return Capacity(device, free, (), own, inner, outer.id)


def _on_gpu(job: Job, facts: DeviceFacts, tenants: _Tenants) -> int:
    """What of the device's use is this job's. Where the driver shows the process and not its
    bytes, the charge is the best guess: otherwise the job would count twice."""
    known = in_use(job, facts, tenants.samples)
    lease = job.lease_on(facts.device.id)
    if known is not None or lease is None:
        return known or 0
    pids = _pids(job, tenants.samples)
    if not any(holder.pid in pids for holder in facts.holders):
        return 0
    return max(0, lease.charge - tenants.within(job, facts))


def _pids(job: Job, samples: dict[str, UsageSample]) -> set[int]:
    sample = samples.get(job.attempt_id)
    pids = set(sample.pids) if sample is not None else set()
    if isinstance(job.holds, Running):
        pids.add(job.holds.worker.pid)
    return pids
