"""The right to use so much memory on one device."""

from msgspec import Struct
from msgspec.structs import replace

from sublet.units import format_bytes


class Lease(Struct, frozen=True):
    """A granted lease.

    `ceiling` is what the program can use: TensorFlow's allocator holds it there. `charge` is what
    the device is charged: the ceiling and the measured cost of one more process. Both move together
    if the lease is elastic.
    """

    device: str
    ceiling: int
    charge: int
    basis: str
    """Where the size comes from, in words."""
    cpus: tuple[int, ...] = ()
    """The processors the program may run on; empty where it may run on those of its client."""
    roomy: bool = False
    """Sized by a measured peak, with so much room that the allocator wastes nothing."""
    most: int = 0
    """What the ceiling may be raised to; 0 for a lease that is never raised."""
    floor: int = 0
    """The ceiling as it was granted; 0 if it has never moved."""
    highest: int = 0
    """The largest ceiling that its program has needed; 0 if none larger than now is known."""
    also: tuple["Lease", ...] = ()
    """The job's leases on other devices, which were granted with this one and end with it."""

    ports: tuple[int, ...] = ()
    """For a task of a gang: the ports of all its tasks, in their order; 0 where there was none."""
    hosts: tuple[str, ...] = ()
    """For a task of a gang on the nodes of a cluster: the addresses of all its tasks."""

    @property
    def all(self) -> tuple["Lease", ...]:
        """The job's leases, one on each of its devices."""
        return (self, *self.also)

    @property
    def where(self) -> str:
        """The devices, such as "gpu0, gpu1"."""
        return ", ".join(one.device for one in self.all)

    def on(self, device: str) -> "Lease | None":
        """The one of the job's leases that is on this device."""
        return next((lease for lease in self.all if lease.device == device), None)

    @property
    def elastic(self) -> bool:
        """Whether the ceiling may be raised while the program runs."""
        return self.most > (self.floor or self.ceiling)

    def resize(self, ceiling: int) -> "Lease":
        """The same lease with another ceiling; the device is charged for the difference. A larger
        one is needed once its program has taken it, and that shows when the rest comes back."""
        return replace(
            self,
            ceiling=ceiling,
            charge=self.charge + ceiling - self.ceiling,
            floor=self.floor or self.ceiling,
            highest=max(self.highest, min(ceiling, self.ceiling)),
        )

    @property
    def size_text(self) -> str:
        """How large it is or was, such as "62 MiB, grew to 74 MiB"; of several, where as well."""
        if self.also:
            return self.size_and_place
        highest = max(self.highest, self.ceiling)
        if highest > self.floor > 0:
            return f"{format_bytes(self.floor)}, grew to {format_bytes(highest)}"
        if self.floor > self.ceiling:
            return f"{format_bytes(self.floor)}, of which it kept {format_bytes(self.ceiling)}"
        return format_bytes(self.ceiling)

    @property
    def size_and_place(self) -> str:
        """How large it is and where, such as "2.0 GiB on each of gpu0, gpu1"."""
        each = [replace(one, also=()).size_text for one in self.all]
        if len(set(each)) == 1:
            return f"{each[0]} on {'each of ' if self.also else ''}{self.where}"
        named = zip(each, self.all, strict=True)
        return ", ".join(f"{size} on {one.device}" for size, one in named)
