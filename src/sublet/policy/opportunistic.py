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
    """A program that holds a lease on the device that is shared."""

    attempt_id: str
    service: ServiceClass
    busy: float | None = None
    """How much of the device it recently kept busy: of a GPU, the share of the time; of the
    processors, how many. None if that is not known, and may be all."""
    processors: tuple[int, ...] = ()
    """The processors that it was started with."""

    @property
    def works(self) -> bool:
        return self.busy is None or self.busy >= WORKS


def shares_of_time(occupants: tuple[Occupant, ...]) -> dict[str, float]:
    """The share of the time that each opportunistic occupant of a GPU may run, above 0 and up
    to 1."""
    opportunistic = [one.attempt_id for one in occupants if one.service == "opportunistic"]
    if not any(one.works for one in occupants if one.service == "guaranteed"):
        return dict.fromkeys(opportunistic, 1.0)
    # The idle ones use nothing of their turn, and may begin at any moment: all count.
    return dict.fromkeys(opportunistic, LEFT / max(1, len(opportunistic)))


def processors_left(
    machine: tuple[int, ...], occupants: tuple[Occupant, ...]
) -> dict[str, tuple[int, ...]]:
    """The processors that each opportunistic occupant is kept on; never none.

    `machine` lists all processors, those that share a core side by side. Opportunistic programs go
    to one end of it, so that they share as few cores with others as possible.
    """
    guaranteed = [one for one in occupants if one.service == "guaranteed" and one.works]
    wanted = sum(len(machine) if one.busy is None else one.busy for one in guaranteed)
    left = max(1, len(machine) - math.ceil(wanted))
    # Where a guaranteed program is bound to some processors, the others are given away first.
    used_by = {number: sum(number in one.processors for one in guaranteed) for number in machine}
    order = sorted(machine, key=lambda number: -used_by[number])
    return {
        one.attempt_id: tuple(
            sorted([number for number in order if number in one.processors][-left:])
        )
        or one.processors
        for one in occupants
        if one.service == "opportunistic"
    }
