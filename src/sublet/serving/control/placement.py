"""The devices that a server uses, and on which of them each model is. Pure.

A model stays where it is as long as it may be there: what is in memory and warm is worth more than
an even distribution. New ones go, the largest first, where the most memory is left, so that memory
and, as far as one can tell, work are spread. If one does not fit then, they are packed instead:
each where the least memory is left that is enough. If one does not fit even then, they are spread
again, and engines load them when they are called.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec import Struct

from sublet.domain.device import Device, no_such_device
from sublet.wire.rows import DeviceRow


class EngineDevice(Struct, frozen=True):
    """A device that engines are started on. `--device cpu,cpu` makes two of one device."""

    name: str
    """For people: the device's, with a number if it is named more than once."""
    asked: str | None  # What the broker is asked for.
    device: Device | None = None  # None where only the broker knows: within a lease.

    @property
    def device_id(self) -> str:
        return "" if self.device is None else self.device.id

    def goes_by(self, name: str) -> bool:
        """Whether a model's `device` means this one. A number is the index of a GPU."""
        whole = f"gpu{name}" if name[:1].isdecimal() else name
        return whole == self.name or (self.device is not None and self.device.goes_by(whole))


def find(asked: str | None, devices: Sequence[DeviceRow], nested: bool) -> tuple[EngineDevice, ...]:
    """What `--device` names: one for each word, or one on each device that a word such as `gpu`
    means. Without it, each GPU, or else the CPU. A server that runs under a lease (`nested`)
    gets all its engines out of that."""
    words = [None] if asked is None else [word.strip() for word in asked.split(",")]
    if nested:
        return tuple(EngineDevice(f"lease#{n}", word) for n, word in enumerate(words, 1))
    found = [device for word in words for device in _meant(word, [row.device for row in devices])]
    if len(found) == 1:
        return (EngineDevice(found[0].id, asked, found[0]),)
    several = Counter(device.id for device in found)
    counted: Counter[str] = Counter()
    named = []
    for device in found:
        counted[device.id] += 1
        number = f"#{counted[device.id]}" if several[device.id] > 1 else ""
        # By its UUID: an index may mean another card when one is gone.
        named.append(EngineDevice(device.id + number, device.uuid or device.id, device))
    return tuple(named)


def _meant(word: str | None, devices: Sequence[Device]) -> list[Device]:
    if word is None:
        word = "gpu" if any(device.kind == "gpu" for device in devices) else "cpu"
    found = [device for device in devices if device.goes_by(word)]
    if not found:
        raise no_such_device(word, devices)
    return found


Placement = Mapping[str, tuple[str, ...]]  # By model: the names of its devices.


class ModelDemand(Struct, frozen=True):
    """A model that is to be placed on `replicas` of the devices that it may be on."""

    model: str
    bytes: int
    devices: tuple[str, ...]
    replicas: int = 1


def place(
    demands: Sequence[ModelDemand], capacities: Mapping[str, int], before: Placement
) -> dict[str, tuple[str, ...]]:
    """The devices of each model from now on. `capacities` has the bytes that models may take on
    each device, including those that are there."""
    kept = {
        one.model: tuple(d for d in before.get(one.model, ()) if d in one.devices)[: one.replicas]
        for one in demands
    }
    left = dict(capacities)
    for one in demands:
        for device in kept[one.model]:
            left[device] -= one.bytes
    waiting = sorted(
        (one for one in demands if len(kept[one.model]) < one.replicas),
        key=lambda one: (-one.bytes, one.model),
    )
    spread, fits = _fill(waiting, kept, left, _emptiest)
    if not fits:
        packed, fits = _fill(waiting, kept, left, _fullest)
        if fits:
            return packed
    return spread


_Rule = Callable[[int, Collection[str], Mapping[str, int]], str]


def _fill(
    waiting: Sequence[ModelDemand], kept: Placement, left: Mapping[str, int], rule: _Rule
) -> tuple[dict[str, tuple[str, ...]], bool]:
    """The placement by this rule, and whether all that waited fit."""
    placed, free, fits = dict(kept), dict(left), True
    for one in waiting:
        while len(placed[one.model]) < one.replicas:
            others = [device for device in one.devices if device not in placed[one.model]]
            device = rule(one.bytes, others, free)
            placed[one.model] += (device,)
            free[device] -= one.bytes
            fits = fits and free[device] >= 0
    return placed, fits


def _emptiest(size: int, devices: Collection[str], free: Mapping[str, int]) -> str:
    return max(devices, key=lambda device: free[device])


def _fullest(size: int, devices: Collection[str], free: Mapping[str, int]) -> str:
    """The fullest of those that have enough memory left."""
    enough = [device for device in devices if free[device] >= size]
    return (
        min(enough, key=lambda device: free[device]) if enough else _emptiest(size, devices, free)
    )
