"""On which devices models are. Pure: the same models, rooms and past give the same placement.

A model stays where it is as long as it may be there: what is in memory and warm is worth more than
an even distribution. New ones go, the largest first, where the most room is left, so that memory
and, as far as one can tell, work are spread. If that leaves one without room, they are packed
instead: each where the least room is left that is enough. If that does, too, memory is short
whatever one does; they are spread again, and engines load them when they are called.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec import Struct

from sublet.domain.device import Device, no_such_device
from sublet.wire.rows import DeviceRow


class DeviceSite(Struct, frozen=True):
    """A device, or one of several places on it where the server has engines of its own."""

    name: str
    """For people: the device's, with a number if there are several sites on it."""
    asked: str | None
    """What the broker is asked for."""
    device: Device | None = None
    """None where the broker alone knows: within a lease."""

    def goes_by(self, name: str) -> bool:
        """Whether a model's `device` means this one. A number is the index of a GPU."""
        whole = f"gpu{name}" if name[:1].isdecimal() else name
        return whole == self.name or (self.device is not None and self.device.goes_by(whole))


def find(asked: str | None, devices: Sequence[DeviceRow], nested: bool) -> tuple[DeviceSite, ...]:
    """The sites that `--device` names: each word is a site, and one that means several devices
    (`gpu`) is a site on each. Without it, there is one on each GPU, or else on the CPU.

    Who is `nested` in a lease gets all engines out of that.
    """
    words = [None] if asked is None else [word.strip() for word in asked.split(",")]
    if nested:
        return tuple(DeviceSite(f"lease#{n}", word) for n, word in enumerate(words, 1))
    found = [device for word in words for device in _meant(word, [row.device for row in devices])]
    if len(found) == 1:
        return (DeviceSite(found[0].id, asked, found[0]),)
    several = Counter(device.id for device in found)
    counted: Counter[str] = Counter()
    sites = []
    for device in found:
        counted[device.id] += 1
        number = f"#{counted[device.id]}" if several[device.id] > 1 else ""
        # By its UUID: an index may mean another card when one is gone.
        sites.append(DeviceSite(device.id + number, device.uuid or device.id, device))
    return tuple(sites)


def _meant(word: str | None, devices: Sequence[Device]) -> list[Device]:
    if word is None:
        word = "gpu" if any(device.kind == "gpu" for device in devices) else "cpu"
    found = [device for device in devices if device.goes_by(word)]
    if not found:
        raise no_such_device(word, devices)
    return found


Placement = Mapping[str, tuple[str, ...]]
"""By model: the sites that have it."""


class ModelDemand(Struct, frozen=True):
    """A model that is to be placed."""

    model: str
    bytes: int
    sites: tuple[str, ...]
    """Where it may be."""
    replicas: int = 1
    """On so many sites; there are enough."""


def place(
    candidates: Sequence[ModelDemand], rooms: Mapping[str, int], before: Placement
) -> dict[str, tuple[str, ...]]:
    """Where each model is from now on. `rooms` has the bytes for models at each site, those of
    models that are there included."""
    kept = {
        one.model: tuple(site for site in before.get(one.model, ()) if site in one.sites)[
            : one.replicas
        ]
        for one in candidates
    }
    left = dict(rooms)
    for one in candidates:
        for site in kept[one.model]:
            left[site] -= one.bytes
    waiting = sorted(
        (one for one in candidates if len(kept[one.model]) < one.replicas),
        key=lambda one: (-one.bytes, one.model),
    )
    spread, fits = _fill(waiting, kept, left, _most)
    if not fits:
        packed, fits = _fill(waiting, kept, left, _least)
        if fits:
            return packed
    return spread


Rule = Callable[[int, Collection[str], Mapping[str, int]], str]


def _fill(
    waiting: Sequence[ModelDemand], kept: Placement, left: Mapping[str, int], rule: Rule
) -> tuple[dict[str, tuple[str, ...]], bool]:
    """The placement by this rule, and whether all of those that waited have room."""
    placed, free, fits = dict(kept), dict(left), True
    for one in waiting:
        while len(placed[one.model]) < one.replicas:
            open_ = [site for site in one.sites if site not in placed[one.model]]
            site = rule(one.bytes, open_, free)
            placed[one.model] += (site,)
            free[site] -= one.bytes
            fits = fits and free[site] >= 0
    return placed, fits


def _most(size: int, sites: Collection[str], free: Mapping[str, int]) -> str:
    return max(sites, key=lambda site: free[site])


def _least(size: int, sites: Collection[str], free: Mapping[str, int]) -> str:
    """Of those with room the fullest."""
    enough = [site for site in sites if free[site] >= size]
    return min(enough, key=lambda site: free[site]) if enough else _most(size, sites, free)
