"""On which devices models are. Pure: the same models, rooms and past give the same placement.

A model stays where it is as long as it may be there: what is in memory and warm is worth more than
an even distribution. New ones go, the largest first, where the most room is left, so that memory
and, as far as one can tell, work are spread. If that leaves one without room, they are packed
instead: each where the least room is left that is enough. If that does, too, memory is short
whatever one does; they are spread again, and engines load them when they are called.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec import Struct

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
