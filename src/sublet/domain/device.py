"""A device, who is on it, and what was true of it at one moment."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from sublet.errors import BadRequest


class Device(msgspec.Struct, frozen=True):
    """A GPU, a MIG instance of one, or the CPU. Stays the same while the machine does.

    `id` is the name people use ("cpu", "gpu0", "gpu0.1" for an instance); `uuid` is the one that
    CUDA_VISIBLE_DEVICES takes. `source` says in words where the capacity comes from.
    """

    id: str
    kind: Literal["cpu", "gpu"]
    name: str
    capacity: int
    index: int | None
    uuid: str | None
    source: str
    compute: tuple[int, int] | None = None

    def goes_by(self, name: str) -> bool:
        """Whether this name means it: its own, its kind's, its UUID, or for an instance its
        card's."""
        return name in (self.id, self.kind, self.uuid, f"{self.kind}{self.index}")


class Holder(msgspec.Struct, frozen=True):
    """A process on a device. `bytes` is None where the driver does not say (WSL, no permission)."""

    pid: int
    name: str
    bytes: int | None


class DeviceFacts(msgspec.Struct, frozen=True):
    """What was true of a device at one moment, in bytes.

    `available` is what could be taken right then. `holders` are those the driver names: they may
    add up to less than `used`. With a `fault` nothing is known of the device; it then counts as
    full, so that whoever overlooks the fault still puts nothing there.
    """

    device: Device
    used: int
    available: int
    holders: tuple[Holder, ...] = ()
    fault: str | None = None

    @classmethod
    def unknown(cls, device: Device, fault: str) -> "DeviceFacts":
        return cls(device, used=device.capacity, available=0, fault=fault)


def no_such_device(name: str | None, devices: Sequence[Device]) -> BadRequest:
    """No device goes by this name: say which there are, by the names they go by."""
    known = [one.id + (f" ({one.name}, {one.uuid})" if one.uuid else "") for one in devices]
    what = "GPU here" if name == "gpu" else f"device {name!r}"
    return BadRequest(
        f"There is no {what}.", f"There {'is' if len(known) == 1 else 'are'}: {', '.join(known)}."
    )
