"""How opportunistic programs share a device with guaranteed ones.

Pure: the same occupants give the same stances. An opportunistic program always has the idle class
on the processors, where the scheduler gives way when another wakes up. A GPU's work is not
interrupted by any scheduler, so there it runs in turns: all of the time while no guaranteed
program works, and a small share of it, divided by those who want it, as soon as one does.
"""

from typing import Literal

from msgspec import Struct

ServiceClass = Literal["guaranteed", "opportunistic"]

WORKS = 0.02
"""The share of recent time from which on a guaranteed program counts as working."""
LEFT = 0.04
"""What all opportunistic programs together get of a GPU on which a guaranteed one works: what
that one may lose, with some room below five percent."""


class Occupant(Struct, frozen=True):
    """One who holds a lease on the device."""

    run: str
    service: ServiceClass
    busy: float
    """The share of recent time that it kept the device busy, 0 to 1; of a program of which that
    is not known, 1."""


class Stance(Struct, frozen=True):
    """How an opportunistic program is to be held now."""

    run: str
    share: float
    """Of the time that it may run, above 0 and up to 1."""


def stances(kind: Literal["cpu", "gpu"], occupants: tuple[Occupant, ...]) -> tuple[Stance, ...]:
    """The stance of each opportunistic occupant, in the order they came."""
    guests = [one for one in occupants if one.service == "opportunistic"]
    working = any(one.busy >= WORKS for one in occupants if one.service == "guaranteed")
    if kind == "cpu" or not working:
        return tuple(Stance(one.run, 1.0) for one in guests)
    # The idle ones use nothing of their turn, and may begin at any moment: all count.
    return tuple(Stance(one.run, LEFT / len(guests)) for one in guests)
