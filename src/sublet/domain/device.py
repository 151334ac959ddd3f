"""A device, who is on it, and what was true of it at one moment."""

from collections.abc import Mapping, Sequence
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
    card: str | None = None
    """The UUID of the card that a MIG instance is part of; None for anything else."""
    on: str = ""
    """The cluster it is part of, as `--on` names it; empty for a device of this machine."""
    node: str = ""
    """The machine of the cluster that has it."""
    address: str = ""
    """That machine's address, by which others of the cluster reach it."""

    def goes_by(self, names: str) -> bool:
        """Whether one of these names, separated by commas, means it: its own, its kind's, its UUID,
        for an instance its card's, or in a cluster its node's."""
        own = (self.id, self.kind, self.uuid, f"{self.kind}{self.index}", self.node or None)
        return any(name in own for name in split_names(names))


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


def split_names(names: str) -> list[str]:
    """The names in a list with commas."""
    return [name.strip() for name in names.split(",")]


def no_such_device(
    name: str, devices: Sequence[Device], left_out: Mapping[str, str] | None = None
) -> BadRequest:
    """No device goes by this name: say which there are, by the names they go by. `left_out` are
    cards that cannot be used, and why."""
    parts = [one for one in devices if one.card is not None and one.card == name]
    if parts:
        return BadRequest(
            f"{name} is in MIG mode: a program can have one of its instances only.",
            f"Name one of {_named(parts)}.",
        )
    there = f"Available: {_named(devices)}."
    if left_out and name in left_out:
        return BadRequest(f"{name} cannot be used: {left_out[name]}.", there)
    what = "GPU here" if name == "gpu" else f"device {name!r}"
    return BadRequest(f"There is no {what}.", there)


def _named(devices: Sequence[Device]) -> str:
    return ", ".join(one.id + (f" ({one.name}, {one.uuid})" if one.uuid else "") for one in devices)
