"""The right to use so much memory on one device."""

from msgspec import Struct


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
    tight: bool = False
    """Sized by a measured peak: nearly all of it will be used."""
