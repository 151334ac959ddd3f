"""The right to use so much memory on one device."""

from msgspec import Struct
from msgspec.structs import replace


class Lease(Struct, frozen=True):
    """A granted lease.

    `ceiling` is what the program can use: TensorFlow's allocator holds it there. `charge` is what
    the device is charged: the ceiling and the measured cost of one more process.
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
    trimmed: int = 0
    """What the ceiling was before it was trimmed; 0 if it never was."""
    also: tuple["Lease", ...] = ()
    """The job's leases on other devices, which were granted with this one and end with it."""

    def on(self, device: str) -> "Lease | None":
        """The one of the job's leases that is on this device."""
        return next((lease for lease in (self, *self.also) if lease.device == device), None)

    def trim(self, ceiling: int) -> "Lease":
        """The same lease with a smaller ceiling; the room between goes back to the device."""
        freed = self.ceiling - ceiling
        basis = f"{self.basis}, trimmed to the measured peak and a margin"
        return replace(
            self, ceiling=ceiling, charge=self.charge - freed, basis=basis, trimmed=self.ceiling
        )
