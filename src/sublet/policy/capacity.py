"""What a plan looks at: devices with what is left of them, and who holds the rest.

A lease is such a capacity, too, for the jobs that its own program starts: its ceiling is then what
there is to give, and what the program uses itself counts as a stranger's.
"""

from typing import Literal

from msgspec import Struct

from sublet.domain.device import Device
from sublet.domain.job import Tenant
from sublet.domain.nursery import Nursery

Service = Literal["guaranteed", "opportunistic"]


class Holding(Struct, frozen=True):
    """A lease on a device, as admission sees it."""

    job: int
    charge: int
    """What the device is charged, or what the job really holds, whichever is more."""
    name: str = ""
    service: Service = "guaranteed"
    since: float | None = None
    """When it was granted, on the clock of the plan."""
    end: float | None = None
    """When it is expected to end, on the same clock; None where nobody can tell."""
    stopping: bool = False
    """It was asked to end: what it holds is coming free."""


class Capacity(Struct, frozen=True):
    """A device, or a lease on one, and what is left of it."""

    device: Device
    free: int
    """May be negative: strangers can take what was free."""
    nurseries: tuple[Nursery, ...] = ()
    strangers: int = 0
    holdings: tuple[Holding, ...] = ()
    within: int | None = None
    """The job whose lease this is; None for a device."""
    fault: str | None = None
    """Why the device cannot be used now: nothing of it is free then, whoever ends."""

    @property
    def tenants(self) -> tuple[Tenant, ...]:
        """Who holds it, to explain an out-of-memory."""
        return tuple(Tenant(one.name, one.charge, one.job) for one in self.holdings)

    @property
    def standing(self) -> int:
        """Bytes that the nurseries hold on this device."""
        return sum(one.holds for one in self.nurseries)

    @property
    def idle(self) -> list[Nursery]:
        """The nurseries that may be ended for what they hold."""
        return [one for one in self.nurseries if one.idle and not one.leaving]

    @property
    def coming(self) -> int:
        """What is coming free: of leases and nurseries that were asked to end."""
        leases = sum(one.charge for one in self.holdings if one.stopping)
        return leases + sum(one.holds for one in self.nurseries if one.leaving)

    @property
    def reachable(self) -> int:
        """What would be free if every lease and every nursery here ended; strangers stay."""
        return self.free + self.standing + sum(one.charge for one in self.holdings)

    def needed_for(self, nursery: int | None) -> int:
        """What the nursery holds from which a job comes; None if it needs none. One that is not
        warm yet will hold as much as the largest of the others."""
        if nursery is None:
            return 0
        known = {one.pid: one.holds for one in self.nurseries if one.holds}
        return known.get(nursery) or max(known.values(), default=0)


def most_ever(capacity: Capacity, overhead: int, nursery: int | None = None) -> int:
    """The largest ceiling this device could give with no other program on it, and no nursery but
    the one from which the job comes."""
    return capacity.device.capacity - capacity.needed_for(nursery) - overhead


def eligible(
    device: str | None,
    capacities: tuple[Capacity, ...],
    within: int | None = None,
    gpus: int | None = None,
) -> list[str]:
    """The devices a job may go to: those it names, else the GPUs, else the CPU. One within another
    goes into that one's lease and nowhere else. One that wants several GPUs cannot have MIG
    instances, as CUDA shows a program one of them at most."""
    if within is not None:
        return [capacity.device.id for capacity in capacities if capacity.within == within]
    if device is None:
        any_gpu = any(capacity.device.kind == "gpu" for capacity in capacities)
        device = "gpu" if any_gpu or gpus else "cpu"
    return [
        capacity.device.id
        for capacity in capacities
        if capacity.within is None
        and capacity.device.goes_by(device)
        and not (gpus and capacity.device.kind != "gpu")
        and not ((gpus or 1) > 1 and capacity.device.card)
    ]
