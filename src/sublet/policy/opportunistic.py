"""How opportunistic programs share the processors, and a GPU, with guaranteed ones.

Pure: the same occupants give the same answers. On the processors an opportunistic program always
has the idle class, where the scheduler gives way when another wakes up. That does not free the
caches, nor the memory's bandwidth, so it is also kept on as many processors as the guaranteed ones
leave idle. A GPU's work is not interrupted by any scheduler, so there it runs in turns: all of the
time while no guaranteed program works, and a small share of it, divided by those who want it, as
soon as one does.
"""

import math
from typing import Literal

from msgspec import Struct

ServiceClass = Literal["guaranteed", "opportunistic"]

WORKS = 0.02
"""The share of recent time from which on a guaranteed program counts as working."""
LEFT = 0.04
"""What all opportunistic programs together get of a GPU on which a guaranteed one works: what
that one may lose, with some room below five percent."""


class Occupant(Struct, frozen=True):
    """One who holds a lease."""

    run: str
    service: ServiceClass
    busy: float | None = None
    """How much of the device it recently kept busy: of a GPU, the share of the time; of the
    processors, how many. None if that is not known, and may be all."""
    processors: tuple[int, ...] = ()
    """Those that it was started with."""

    @property
    def works(self) -> bool:
        return self.busy is None or self.busy >= WORKS


def turns(occupants: tuple[Occupant, ...]) -> dict[str, float]:
    """The share of the time that each opportunistic occupant of a GPU may run, above 0 and up
    to 1."""
    guests = [one.run for one in occupants if one.service == "opportunistic"]
    if not any(one.works for one in occupants if one.service == "guaranteed"):
        return dict.fromkeys(guests, 1.0)
    # The idle ones use nothing of their turn, and may begin at any moment: all count.
    return dict.fromkeys(guests, LEFT / max(1, len(guests)))


def parts(machine: tuple[int, ...], occupants: tuple[Occupant, ...]) -> dict[str, tuple[int, ...]]:
    """The processors that each opportunistic occupant is kept on; never none.

    `machine` has them all, those that share a core side by side: guests are sent to one end of it,
    so that they share as few cores with others as can be.
    """
    hosts = [one for one in occupants if one.service == "guaranteed" and one.works]
    wanted = sum(len(machine) if one.busy is None else one.busy for one in hosts)
    left = max(1, len(machine) - math.ceil(wanted))
    # Where a guaranteed one is bound to some processors, the others are left to the guests first.
    hosted = {number: sum(number in one.processors for one in hosts) for number in machine}
    order = sorted(machine, key=lambda number: -hosted[number])
    return {
        one.run: tuple(sorted([number for number in order if number in one.processors][-left:]))
        or one.processors
        for one in occupants
        if one.service == "opportunistic"
    }
