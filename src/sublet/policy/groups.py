"""Where the leases of a group go: a device for each of them, or nowhere. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sublet.policy.capacity import Capacity, most_ever
from sublet.policy.wait_queue import Candidate, Offer, Part
from sublet.units import format_bytes

_MOST_STEPS = 5_000
"""Tries after which a group counts as not fitting: the search grows exponentially with its size."""


class Placement(NamedTuple):
    """One lease of a group, and where it goes."""

    part: Part
    offer: Offer
    device: str


def place(
    parts: Sequence[Part], left: Mapping[str, int], spread: bool = False
) -> tuple[Placement, ...] | None:
    """A device for each part, so that no device gives more than it has `left`, and none has two
    parts of one job; None if there is no such placement, or none was found in time.

    The largest parts come first, each on the device that it fills best; if they are to be spread,
    on the one with the fewest others of the group. Other devices are tried only where that leads
    nowhere.
    """
    ordered = sorted(parts, key=lambda part: (-_smallest(part), part.job))
    search = _Search(ordered, left, spread)
    return tuple(search.placed) if search.run(0) else None


def too_large(group: Candidate, capacities: Iterable[Capacity]) -> str:
    """Why a group has no room even on empty devices, in words; empty if it has."""
    ever = {one.device.id: most_ever(one, 0, group.nursery) for one in capacities}
    if place(group.parts, ever, group.spread) is not None:
        return ""
    least = sum(map(_smallest, group.parts))
    most = ", ".join(f"{name} {format_bytes(max(0, ever[name]))}" for name in group.devices)
    return f"needs {format_bytes(least)} at the same time; there can be: {most}"


class _Search:
    def __init__(self, parts: Sequence[Part], left: Mapping[str, int], spread: bool) -> None:
        self.placed: list[Placement] = []
        self._parts = parts
        self._spread = spread
        self._left = dict(left)
        offers = list(dict.fromkeys(offer for part in parts for offer in part.offers))
        self._offered = {
            name: tuple(at for at, offer in enumerate(offers) if name in offer.devices)
            for name in left
        }
        """Which offers name a device: devices with the same are alike for every part."""
        self._steps = 0

    def run(self, at: int) -> bool:
        """Place the parts from `at` on; False, with nothing changed, if they do not fit."""
        if at == len(self._parts):
            return True
        part = self._parts[at]
        options = sorted(
            (self._company(name), self._left[name] - offer.charge, name, number)
            for number, offer in enumerate(part.offers)
            for name in offer.devices
            if offer.charge <= self._left.get(name, -1)
            and not any(one.part.job == part.job and one.device == name for one in self.placed)
        )
        tried: set[tuple[int, int, tuple[int, ...], frozenset[int]]] = set()
        for _, rest, name, number in options:
            offer = part.offers[number]
            there = frozenset(one.part.job for one in self.placed if one.device == name)
            alike = (rest, offer.charge, self._offered[name], there)
            if alike in tried:
                continue  # A device like one that has led nowhere.
            tried.add(alike)
            self._steps += 1
            if self._steps > _MOST_STEPS:
                return False
            self._left[name] -= offer.charge
            self.placed.append(Placement(part, offer, name))
            if self.run(at + 1):
                return True
            self.placed.pop()
            self._left[name] += offer.charge
        return False

    def _company(self, name: str) -> int:
        """How many of the group are there already, if that matters."""
        return sum(one.device == name for one in self.placed) if self._spread else 0


def _smallest(part: Part) -> int:
    return min((offer.charge for offer in part.offers), default=0)
