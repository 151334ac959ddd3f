"""What a job would cost and need, from what the ledger knows of its program."""

from sublet.broker.ledger import Ledger
from sublet.devices import context_overhead
from sublet.domain.device import Device
from sublet.domain.job import Job, JobSpec, Outcome, Waiting
from sublet.domain.lease import Lease
from sublet.errors import BadRequest, TooLarge
from sublet.policy import sizing
from sublet.policy.line import Candidate, Offer
from sublet.policy.offers import never, offers
from sublet.policy.rooms import Room, eligible, most_ever
from sublet.units import MiB

_USUAL_OUTSIDE = {"warm": 128 * MiB, "cold": 384 * MiB}
"""What a process costs beside its pool, before any was measured."""


class Appraiser:
    """Reads the ledger; decides nothing."""

    def __init__(self, ledger: Ledger, devices: dict[str, Device]) -> None:
        self._ledger = ledger
        self._devices = devices
        self._offers: dict[tuple[int, int], tuple[tuple[Offer, ...], str]] = {}
        self._stands: tuple[tuple[str, int], ...] = ()

    def candidate(self, job: Job, rooms: tuple[Room, ...], since: float, held: str) -> Candidate:
        """The job as the admission policy sees it; what it would get is worked out once."""
        stands = tuple((room.device.id, room.standing) for room in rooms)
        if stands != self._stands:
            self._stands = stands
            self.forget()
        if (known := self._offers.get((job.id, job.least))) is None:
            known = self._offers[job.id, job.least] = self._appraise(job, rooms)
        possible, otherwise = known
        return Candidate(job.id, job.id, possible, since, held=held or otherwise)

    def forget(self) -> None:
        """Something new is known: work all offers out again when they are needed."""
        self._offers.clear()

    def _appraise(self, job: Job, rooms: tuple[Room, ...]) -> tuple[tuple[Offer, ...], str]:
        kinds = {device.kind for device in self._devices.values()}
        overhead = {d.id: self.overhead(job, d) for d in self._devices.values()}
        evidence: dict[str, sizing.Evidence] = {
            kind: self._ledger.evidence(job, kind) for kind in kinds
        }
        ask = (job.spec.memory, job.spec.device, rooms, overhead)
        possible = offers(*ask, evidence, job.least)
        return possible, "" if possible else never(*ask, job.least)

    def overhead(self, job: Job, device: Device) -> int:
        """What one more process costs on a device, beside its ceiling."""
        if device.kind == "gpu":
            return context_overhead(device.compute, device.capacity)
        start = "cold" if job.spec.cold or not job.spec.program.python else "warm"
        known = self._ledger.evidence(job, "cpu").outside
        if known is None:
            known = self._ledger.usual_outside("cpu", start)
        return _USUAL_OUTSIDE[start] if known is None else sizing.round_up(int(known * 1.1))

    def check(self, spec: JobSpec, rooms: tuple[Room, ...]) -> None:
        """Refuse what can never be done."""
        names = eligible(spec.device, rooms)
        if not names:
            known = ", ".join(self._devices)
            raise BadRequest(f"There is no device {spec.device!r}.", f"There are: {known}.")
        most = len(spec.surroundings.affinity)
        if spec.cpus is not None and not 1 <= spec.cpus <= most:
            raise BadRequest(
                f"--cpus {spec.cpus}: this command may use {most}.", f"Ask for 1 to {most}."
            )
        job = Job(0, "", spec, 0.0, Waiting(0.0))
        refusals: list[BadRequest] = []
        for room in rooms:
            if room.device.id not in names:
                continue
            ever = most_ever(room, self.overhead(job, room.device))
            try:
                sizing.check(spec.memory, room.device, ever)
            except BadRequest as refusal:
                refusals.append(refusal)
            else:
                return
        raise next((r for r in refusals if isinstance(r, TooLarge)), refusals[0])

    def suggest(self, job: Job, lease: Lease, told: Outcome, rooms: tuple[Room, ...]) -> int | None:
        """A larger ceiling that the device could give; None if it could give none."""
        room = next((room for room in rooms if room.device.id == lease.device), None)
        if room is None:
            return None
        most = most_ever(room, self.overhead(job, room.device)) // MiB * MiB
        wanted = sizing.after_failure(lease.ceiling, told.peak or 0, told.asked)
        chosen = min(wanted, most)
        return chosen if chosen > lease.ceiling else None
