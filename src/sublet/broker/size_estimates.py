"""What a job would cost and need, from what the ledger knows of its program."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from sublet.broker.ledger import Ledger
from sublet.broker.measurements import start_of
from sublet.devices import context_overhead
from sublet.domain.device import Device, no_such_device, split_names
from sublet.domain.history import Explanation, Forecast
from sublet.domain.job import Finished, Job, JobSpec, Outcome, Running, Starting, Waiting
from sublet.domain.lease import Lease
from sublet.domain.memory import Between
from sublet.errors import BadRequest, TooLarge, WorldError
from sublet.policy import sizing
from sublet.policy.capacity import Capacity, eligible, most_ever
from sublet.policy.groups import too_large
from sublet.policy.offers import never, offers
from sublet.policy.wait_queue import Candidate, Offer, Part
from sublet.units import MiB, written_bytes

_ELSEWHERE = 1.5
"""What a forecast from one kind of device is multiplied with on another."""
_MATTERS = 16 * MiB
"""A change of what a process usually costs that is worth working out all offers again."""
_USUAL_OUTSIDE = {"warm": 128 * MiB, "cold": 384 * MiB, "lodger": 384 * MiB}
"""What a process costs beside its pool, before any was measured. Those that hold a lease themselves
count apart ("lodger" in the ledger): a notebook's own data is no cost of starting programs cold."""


class _Known(NamedTuple):
    """What a job would be given, and what that rests on."""

    program: str
    least: int
    offers: tuple[Offer, ...]
    otherwise: str
    """Why there are no offers; empty if there are."""
    expected: float | None
    nursery: int | None


class SizeEstimator:
    """Sizes jobs by what the ledger knows of their programs; keeps what it has worked out."""

    def __init__(
        self,
        ledger: Ledger,
        devices: dict[str, Device],
        nursery: Callable[[Job], int | None],
        reconsider: Callable[[int], bool],
        left_out: Mapping[str, str] | None = None,
    ) -> None:
        """`nursery` says from which nursery a job comes; `reconsider` whether one that could not be
        begun can be with so much room; `left_out` which GPUs cannot be used, and why."""
        self._measurements = ledger.measurements
        self.devices = devices
        self.left_out = {} if left_out is None else left_out
        self._offers: dict[int, _Known] = {}
        self._nursery = nursery
        self._reconsider = reconsider
        self._stands: dict[str, dict[int, int]] = {}
        """What each nursery held on each device, when the offers were worked out."""
        self._usual: dict[str, int] = {}

    def candidate(
        self, job: Job, capacities: tuple[Capacity, ...], since: float, held: str
    ) -> Candidate:
        """The job as the admission policy sees it; what it would get is worked out once."""
        known = self._offers.get(job.id)
        if known is None or known.least != job.least:
            possible, otherwise = self._appraise(job, capacities)
            known = _Known(
                self._measurements.program(job),
                job.least,
                possible,
                otherwise,
                self.expected(job),
                self._nursery(job),
            )
            self._offers[job.id] = known
        several = (job.spec.gpus or 1) if known.offers else 1
        parts = (Part(job.id, known.offers),) * several if several > 1 else ()
        return Candidate(
            job=job.id,
            order=job.id,
            offers=known.offers,
            since=since,
            priority=job.spec.priority,
            service=job.spec.service,
            expected=known.expected,
            held=held or known.otherwise,
            spread=job.spec.spread,
            parts=parts,
            nursery=known.nursery,
        )

    def together(self, ones: list[Candidate], capacities: tuple[Capacity, ...]) -> Candidate:
        """The jobs of a gang as one candidate, held if they can never run at the same time."""
        found = Candidate.together(ones)
        lacking = "" if found.held else too_large(found, capacities)
        return replace(found, held=found.held or lacking)

    def check_gang(self, specs: list[JobSpec], capacities: tuple[Capacity, ...]) -> None:
        """Refuse a gang of which a task, or the whole, can never run."""
        ones: list[Candidate] = []
        for at, spec in enumerate(specs):
            self.check(spec, capacities)
            # Number 0 and below are no jobs: nothing is remembered of them.
            ones.append(self.candidate(Job(-at, "", spec, 0.0, Waiting(0.0)), capacities, 0.0, ""))
            self.forget(-at)
        found = Candidate.together(ones)
        if why := found.held or too_large(found, capacities):
            raise TooLarge(
                f"This cluster of {len(specs)} tasks {why}.",
                "Ask for fewer tasks, or for less --memory.",
            )

    def expected(self, job: Job) -> float | None:
        """Seconds that it will run for, as far as anybody can tell: as it did before, and no longer
        than it may."""
        known, limit = self._measurements.expected(job), job.spec.time
        return limit if known is None else known if limit is None else min(known, limit)

    def needed(self, job: Job) -> int:
        """The ceiling below which a running job is not trimmed: the least that its user named, or
        what earlier runs of its program needed; 0 if nothing is known."""
        assert job.lease is not None
        asked = job.spec.memory
        least = asked.floor if isinstance(asked, Between) else 0
        known = self._measurements.evidence(job, self.devices[job.lease.device].kind)
        peak = max(known.peak or 0, known.at_least)
        return max(least, sizing.with_margin(peak, sizing.doubt(known.runs)) if peak else 0)

    def is_enough(self, job: Job) -> bool:
        """Whether earlier runs show that the ceiling of a running job is all that it needs."""
        assert job.lease is not None
        known = self._measurements.evidence(job, self.devices[job.lease.device].kind)
        wanted = sizing.learned_ceiling(known, 0)
        return known.peak is not None and wanted <= job.lease.ceiling

    def measured(self, job: Job) -> list[int]:
        """Something new is known of this job's program: the jobs to look at again."""
        program = self._measurements.program(job)
        same = [number for number, known in self._offers.items() if known.program == program]
        for number in same:
            del self._offers[number]
        return same

    def forget(self, number: int) -> None:
        """This job is not live any more."""
        self._offers.pop(number, None)

    def outdated(self, capacities: tuple[Capacity, ...], room: int) -> bool:
        """Whether all offers are to be worked out again: the devices or their nurseries have
        changed, or could with so much room in main memory; or what a process usually costs has
        changed, by so much that it matters."""
        stands = {
            one.device.id: {warm.pid: warm.holds for warm in one.nurseries if not warm.leaving}
            for one in capacities
        }
        usual = {
            start: self._measurements.usual_outside("cpu", start) or 0 for start in _USUAL_OUTSIDE
        }
        for model in {_model(device) for device in self.devices.values()} - {""}:
            usual[model] = self._measurements.usual_on_gpu(model) or 0
        far = any(abs(usual[start] - self._usual.get(start, 0)) > _MATTERS for start in usual)
        if stands == self._stands and not far and not self._reconsider(room):
            return False
        self._stands, self._usual = stands, usual
        self._offers.clear()
        return True

    def _appraise(
        self, job: Job, capacities: tuple[Capacity, ...]
    ) -> tuple[tuple[Offer, ...], str]:
        capacities = _within_reach(job.spec, capacities)
        kinds = {device.kind for device in self.devices.values()}
        overhead = {
            capacity.device.id: self.overhead(job, capacity.device) for capacity in capacities
        }
        evidence: dict[str, sizing.Evidence] = {
            kind: self._measurements.evidence(job, kind) for kind in kinds
        }
        ask = (job.spec.memory, job.spec.device, capacities, overhead)
        rest = (job.least, job.spec.within, job.spec.gpus, self._nursery(job))
        possible = offers(*ask, evidence, *rest)
        return possible, "" if possible else never(*ask, *rest)

    def overhead(self, job: Job, device: Device) -> int:
        """What one more process costs on a device, beside its ceiling."""
        if device.kind == "gpu":
            known = self._measurements.evidence(job, "gpu", device.name).outside
            if known is None:
                known = self._measurements.usual_on_gpu(device.name)
            # Of a lease, the card's own size counts.
            whole = (one.capacity for one in self.devices.values() if one.uuid == device.uuid)
            usual = context_overhead(device.compute, next(whole, device.capacity))
        else:
            start = start_of(job)
            known = self._measurements.evidence(job, "cpu").outside
            if start == "warm" and self._nursery(job) is None and not device.on:
                start, known = "cold", None  # It would start warm, and its nursery cannot be.
            if known is None:
                known = self._measurements.usual_outside("cpu", start)
            usual = _USUAL_OUTSIDE[start]
        learned = usual if known is None else sizing.round_up(int(known * 1.1))
        # A node's broker that has learned nothing yet counts with what is usual, and would have
        # no room for what is counted with less here.
        return max(usual, learned) if device.on else learned

    def explain(self, job: Job, capacities: tuple[Capacity, ...]) -> Explanation:
        """What the size of a job's lease rests on, from what was known when it was sized.

        For a job that waits: what it would be given now.
        """
        state = job.holds or job.state
        lease = state.lease if isinstance(state, Finished) else job.lease
        device = self.devices.get(lease.device) if lease else None
        if device is None:
            reach = _within_reach(job.spec, capacities)
            names = eligible(job.spec.device, reach, None, job.spec.gpus) or list(self.devices)
            device = self.devices[names[0]]
        capacity = _capacity(job.spec, device.id, capacities)
        assert capacity is not None
        peak = None
        before: float | None = None
        match state:
            case Starting(since=since) | Running(since=since):
                before = since
            case Finished(at=at, outcome=outcome):
                peak, before = outcome.peak, at - outcome.ran
        return Explanation(
            job=job.id,
            name=job.spec.name,
            attempt=job.attempt,
            state=type(state).__name__.lower(),
            ask=str(job.spec.memory),
            device=capacity.device.id,
            capacity=capacity.device.capacity,
            ever=most_ever(capacity, self.overhead(job, device), self._nursery(job)),
            history=self._measurements.history(job, device.kind, before, _model(device)),
            lease=lease,
            least=job.least,
            peak=peak,
            past=job.past,
        )

    def keep_forecast(self, spec: JobSpec, forecast: Forecast) -> None:
        """Keep what a probe on the CPU has found, for every kind of device there is."""
        for kind in {device.kind for device in self.devices.values()}:
            outcome = forecast
            if kind == "gpu":
                # Other kernels, other workspaces: the same order of magnitude, no more.
                high = int(forecast.high * _ELSEWHERE)
                words = f"{forecast.rests_on}, on the CPU"
                outcome = replace(forecast, high=high, rests_on=words)
            self._measurements.keep_forecast(spec, kind, outcome)

    def check(self, spec: JobSpec, capacities: tuple[Capacity, ...]) -> None:
        """Refuse what can never be done."""
        capacities = _within_reach(spec, capacities)
        if spec.on and not capacities:
            raise WorldError(
                f"Nothing is known of the Ray cluster {spec.on}.",
                f"`sublet status --on {spec.on}` says what is wrong with it.",
            )
        names = eligible(spec.device, capacities, spec.within, spec.gpus)
        if spec.within is None:
            self._check_devices(spec, names)
        most = len(spec.surroundings.affinity)
        if spec.cpus is not None and not spec.on and not 1 <= spec.cpus <= most:
            raise BadRequest(
                f"--cpus {spec.cpus}: this command may use {most}.", f"Ask for 1 to {most}."
            )
        job = Job(0, "", spec, 0.0, Waiting(0.0))
        nursery = self._nursery(job)
        refusals: list[BadRequest] = []
        fitting = 0
        for capacity in capacities:
            if capacity.device.id not in names:
                continue
            overhead = self.overhead(job, capacity.device)
            ever = most_ever(capacity, overhead, nursery)
            try:
                sizing.check(spec.memory, capacity.device, ever, overhead)
            except TooLarge as refusal:
                refusals.append(_of_lease(refusal, capacity, ever))
            except BadRequest as refusal:
                refusals.append(refusal)
            else:
                fitting += 1
        if fitting >= (spec.gpus or 1):
            return
        raise next((r for r in refusals if isinstance(r, TooLarge)), refusals[0])

    def _check_devices(self, spec: JobSpec, names: list[str]) -> None:
        """Refuse devices that are not there, or that are fewer than were asked for."""
        devices = [one for one in self.devices.values() if one.on == spec.on]
        wanted = spec.gpus or 1
        for name in split_names(spec.device or ("gpu" if spec.gpus else "cpu")):
            if not any(one.goes_by(name) for one in devices):
                raise no_such_device(name, devices, self.left_out)
        if len(names) >= wanted:
            return
        gpus = [one for one in devices if one.kind == "gpu"]
        whole = [one.id for one in gpus if one.card is None]
        there = f"Available: {', '.join(one.id for one in gpus)}."
        if spec.device is not None:
            named = [one.id for one in gpus if one.goes_by(spec.device)]
            what = f"{'CUDA_VISIBLE_DEVICES' if spec.wished else '--device'} names {len(named)}"
        else:
            what = f"there {'is' if len(whole) == 1 else 'are'} {len(whole)} here"
        if len(gpus) > len(whole):
            there += " A program can have several whole GPUs, but one MIG instance only."
        raise BadRequest(f"--gpus {wanted}: {what}.", there)

    def suggest(
        self,
        job: Job,
        lease: Lease | None,
        outcome: Outcome,
        capacities: Callable[[], tuple[Capacity, ...]],
    ) -> int | None:
        """After an out-of-memory: a larger ceiling that the device could give; None if it could
        give none, or if the job ended otherwise."""
        if lease is None or outcome.cause != "lease exceeded":
            return None
        now = capacities()
        found = [_capacity(job.spec, one.device, now) for one in lease.all]
        here = [capacity for capacity in found if capacity is not None]
        if len(here) < len(lease.all):
            return None
        capacity = here[0]
        # The same on each of several devices: what the smallest can give.
        nursery = self._nursery(job)
        most = min(most_ever(one, self.overhead(job, one.device), nursery) for one in here)
        wanted = sizing.after_failure(lease.ceiling, outcome.peak or 0, outcome.asked)
        # What other runs held is known, too.
        known = self._measurements.evidence(job, capacity.device.kind)
        wanted = max(wanted, sizing.with_margin(max(known.peak or 0, known.at_least)))
        if job.least:  # It was made larger before, and not enough: each try costs a start.
            wanted = max(wanted, 2 * lease.ceiling)
        chosen = min(wanted, most // MiB * MiB)
        return chosen if chosen > lease.ceiling else None


def _within_reach(spec: JobSpec, capacities: tuple[Capacity, ...]) -> tuple[Capacity, ...]:
    """The devices of this machine, or those of the cluster that the job is for."""
    return tuple(one for one in capacities if one.device.on == spec.on)


def _model(device: Device) -> str:
    """The name of a GPU; what processes cost on a CPU does not depend on it."""
    return device.name if device.kind == "gpu" else ""


def _capacity(spec: JobSpec, device: str, capacities: tuple[Capacity, ...]) -> Capacity | None:
    """Where a lease on this device comes out of: another lease, if that is still there."""
    outer = (
        capacity
        for capacity in capacities
        if spec.within is not None and capacity.within == spec.within
    )
    return next(
        outer, next((capacity for capacity in capacities if capacity.device.id == device), None)
    )


def _of_lease(refusal: TooLarge, capacity: Capacity, most: int) -> TooLarge:
    """Too large for a lease is not too large for the device: that lease could be larger."""
    if capacity.within is None:
        return refusal
    less = written_bytes(most, up=False)
    smaller = f"Ask for at most {less}, or give" if most >= sizing.SMALLEST else "Give"
    return TooLarge(refusal.message, f"{smaller} #{capacity.within} a larger lease.")
