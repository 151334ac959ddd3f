"""All devices that a plan looks at, found by name and by how much of them is free.

Whoever plans again and again for many devices keeps one `Capacities` and puts in what has changed;
a plan then costs what it decides, and not a look at each device. Plans only read it.
"""

import functools
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator

from sublet.policy.capacity import Capacity

FEW = 16
"""So many devices are looked at one by one, which is quicker."""


class Amounts:
    """An amount for each device, found by name and by size."""

    def __init__(self, amounts: dict[str, int], few: int = FEW) -> None:
        self._few = few
        self._of = dict(amounts)
        self._ordered = sorted((amount, name) for name, amount in self._of.items())

    def __getitem__(self, name: str) -> int:
        return self._of[name]

    def __contains__(self, name: str) -> bool:
        return name in self._of

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def get(self, name: str, otherwise: int) -> int:
        """The amount of a device; `otherwise` if it is not known."""
        return self._of.get(name, otherwise)

    def put(self, name: str, amount: int) -> None:
        """Set the amount of a device."""
        known = self._of.get(name)
        if known == amount:
            return
        if known is not None:
            del self._ordered[bisect_left(self._ordered, (known, name))]
        insort(self._ordered, (amount, name))
        self._of[name] = amount

    def copy(self) -> "Amounts":
        """The same amounts, to change."""
        made = Amounts({}, self._few)
        made._of, made._ordered = self._of.copy(), self._ordered.copy()
        return made

    def tightest(
        self, devices: tuple[str, ...], least: int, usable: Callable[[str], bool]
    ) -> tuple[int, str] | None:
        """The smallest amount of at least so much, and its device: of equal ones the first by
        name. Only of these devices, and of those that are `usable`."""
        if len(devices) <= self._few:
            these = ((self._of.get(name, -1), name) for name in devices)
            return min(
                (one for one in these if one[0] >= max(0, least) and usable(one[1])), default=None
            )
        members, ordered = members_of(devices), self._ordered
        for at in range(bisect_left(ordered, (max(0, least), "")), len(ordered)):
            name = ordered[at][1]
            if name in members and usable(name):
                return ordered[at]
        return None

    def most(
        self, devices: tuple[str, ...], usable: Callable[[str], bool]
    ) -> tuple[int, str] | None:
        """The largest amount and its device, chosen as by `tightest`."""
        if len(devices) <= self._few:
            these = [
                (-self._of[name], name) for name in devices if name in self._of and usable(name)
            ]
            lowest = min(these, default=None)
            return None if lowest is None else (-lowest[0], lowest[1])
        members, ordered = members_of(devices), self._ordered
        end = len(ordered)
        while end:
            start = bisect_left(ordered, (ordered[end - 1][0], ""))
            for at in range(start, end):
                name = ordered[at][1]
                if name in members and usable(name):
                    return ordered[at]
            end = start
        return None


class Capacities:
    """Devices with what is left of them. Its owner puts; plans only read."""

    def __init__(self, capacities: Iterable[Capacity] = (), few: int = FEW) -> None:
        # By name, so that the order of the input decides nothing.
        self._of = {one.device.id: one for one in sorted(capacities, key=lambda one: one.device.id)}
        self.free = Amounts({name: one.free for name, one in self._of.items()}, few)
        self.reachable = Amounts({name: one.reachable for name, one in self._of.items()}, few)
        self.yielding = {name for name, one in self._of.items() if _yields(one)}
        """The devices of which something is coming free, or may be taken from its holder."""

    def __getitem__(self, name: str) -> Capacity:
        return self._of[name]

    def __iter__(self) -> Iterator[Capacity]:
        return iter(self._of.values())

    def put(self, one: Capacity) -> None:
        """Take a device in, or replace what is known of it."""
        name = one.device.id
        self._of[name] = one
        self.free.put(name, one.free)
        self.reachable.put(name, one.reachable)
        if _yields(one):
            self.yielding.add(name)
        else:
            self.yielding.discard(name)


def _yields(one: Capacity) -> bool:
    held = any(held.stopping or held.service == "opportunistic" for held in one.holdings)
    return held or any(nursery.idle or nursery.leaving for nursery in one.nurseries)


@functools.lru_cache(maxsize=256)
def members_of(devices: tuple[str, ...]) -> frozenset[str]:
    """The same devices, to look names up in."""
    return frozenset(devices)
