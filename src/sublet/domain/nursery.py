"""A nursery, as policies see it."""

from collections.abc import Iterable

from msgspec import Struct


class Nursery(Struct, frozen=True):
    """A warm process, and what it holds in main memory."""

    pid: int
    holds: int
    used: float = 0.0
    """When a program last came from it, or it was begun, in monotonic time."""
    idle: bool = False
    """No program that came from it runs: it may be ended for the memory that it holds."""
    leaving: bool = False
    """It was ended and has not gone yet: what it holds is coming free."""


def least_recent(nurseries: Iterable[Nursery], lacking: int) -> list[Nursery]:
    """Those to end for so much memory: least recently used first. All of them
    if they are too little."""
    chosen: list[Nursery] = []
    for one in sorted(nurseries, key=lambda one: (one.used, one.pid)):
        if lacking <= 0:
            break
        chosen.append(one)
        lacking -= one.holds
    return chosen
