"""Which models stay in memory when there are more than fit.

Chooses what to evict, and nothing else. Pure: the same residents and the same time give the same
plan. "No room now" is an answer, not an error.

What a model in memory is worth is the loading that it saves, per byte and second:

    load seconds / bytes / seconds until it is used next

The last is not known. It is taken to be the mean gap between its uses of late, the present one
included, which has not ended: so a model goes when it has gone quiet, and those stay that are used
often, load slowly or are small. In traces of 50 models of which 8 fit it spent 1 to 18 % more time
on loading than a rule that knows how popular each model is; GreedyDual-Size-Frequency 7 to 28 %,
LRU 30 to 42 % more. To hold every new model for twice its loading time cost a quarter, so none is
held unless that is asked for: only those that have requests stay for a while.
"""

import dataclasses
from collections.abc import Hashable, Iterable, Sequence

_FRESH = 0.1  # Share of the past that each use replaces.
_SHORTEST = 1e-3
"""Seconds. Batches follow one another faster, and that says no more of a model."""


@dataclasses.dataclass(frozen=True)
class Habit:
    """How a model has been used so far: so many uses in so much time, older ones counting less."""

    known: float  # Since when it is known.
    used: float | None = None  # When it was used last.
    seconds: float = 0.0
    uses: float = 0.0

    def after_use(self, now: float) -> "Habit":
        return Habit(
            self.known,
            now,
            (1 - _FRESH) * self.seconds + self.quiet(now),
            (1 - _FRESH) * self.uses + 1,
        )

    def until_next(self, now: float) -> float:
        """The estimated seconds until its next use: the mean gap, and more the longer it is
        quiet."""
        return max((self.seconds + self.quiet(now)) / max(self.uses, 1.0), _SHORTEST)

    def quiet(self, now: float) -> float:
        return now - (self.known if self.used is None else self.used)


@dataclasses.dataclass(frozen=True)
class Residency:
    """A model in memory, as the choice sees it."""

    key: Hashable
    bytes: int
    seconds: float  # What it costs to load it again.
    loaded: float  # When it was loaded.
    habit: Habit
    busy: bool = False  # It has requests, queued or running.
    pinned: bool = False
    hold: float = 0.0
    """Seconds that it stays at least, if there is another way."""
    busy_hold: float = 0.0
    """Seconds that it stays at least while it has requests."""
    idle: float = 0.0  # Seconds without use after which it goes; 0: none.

    def worth(self, now: float) -> float:
        return self.seconds / max(self.bytes, 1) / self.habit.until_next(now)


@dataclasses.dataclass(frozen=True)
class Evict:
    """Evict these to have enough memory; none if there is enough."""

    keys: tuple[Hashable, ...] = ()


@dataclasses.dataclass(frozen=True)
class Wait:
    """There is not enough memory before a busy model has done its work."""


@dataclasses.dataclass(frozen=True)
class Never:
    """There is not enough memory as long as the pinned models are there."""

    most: int  # Bytes that could be had at most.


Plan = Evict | Wait | Never


def plan(
    need: int,
    limit: int,
    reserve: int,
    residents: Sequence[Residency],
    now: float,
    waited: float = 0.0,
) -> Plan:
    """How to free `need` bytes of `limit`, with `reserve` kept free for computing.

    `waited` are the seconds that the newcomer has waited. A busy model goes only after a while,
    and only for one that has waited as long: so models that are all in demand and do not fit
    alternate, in spans that are long against the time that loading takes. The reserve is given up
    before a model is refused.
    """
    fixed = sum(resident.bytes for resident in residents if resident.pinned)
    if need > limit - fixed:
        return Never(max(0, limit - fixed))
    ranked = sorted(
        (
            resident
            for resident in residents
            if not resident.pinned and _rank(resident, now, waited) is not None
        ),
        key=lambda resident: (_rank(resident, now, waited), resident.worth(now), str(resident.key)),
    )
    taken = sum(resident.bytes for resident in residents)
    for spare in (reserve, 0):
        chosen = _fewest(need - (limit - spare - taken), ranked)
        if chosen is not None:
            return Evict(tuple(resident.key for resident in chosen))
        if any(not resident.pinned and resident not in ranked for resident in residents):
            return Wait()
    raise AssertionError("all that is not pinned can be evicted, and that would be enough")


def expired(residents: Iterable[Residency], now: float) -> list[Hashable]:
    """The models that have gone unused for longer than they may."""
    return [
        resident.key
        for resident in residents
        if resident.idle > 0
        and not resident.busy
        and not resident.pinned
        and now - max(resident.loaded, resident.habit.used or resident.loaded) >= resident.idle
    ]


def _rank(resident: Residency, now: float, waited: float) -> int | None:
    """Who goes first: 0 before 1 before 2, None not at all."""
    stays = now - resident.loaded
    if resident.busy:
        return 2 if min(waited, stays) >= max(resident.busy_hold, resident.hold) else None
    return 1 if stays < resident.hold else 0


def _fewest(missing: int, ranked: Sequence[Residency]) -> list[Residency] | None:
    """The first of `ranked` that have `missing` bytes together, without those that are not
    needed."""
    chosen: list[Residency] = []
    for resident in ranked:
        if missing <= 0:
            break
        chosen.append(resident)
        missing -= resident.bytes
    if missing > 0:
        return None
    for resident in reversed(chosen[:]):
        if resident.bytes <= -missing:
            chosen.remove(resident)
            missing += resident.bytes
    return chosen


class Reserve:
    """The memory that is left free for what models compute: the most that they took lately, in
    two spans of time, so that one large batch is not remembered for ever."""

    def __init__(self, least: int, most: int, span: float = 600.0) -> None:
        self._least = least
        self._most = most
        self._span = span
        self._begun = float("-inf")
        self._peaks = (0, 0)

    def note(self, taken: int, now: float) -> None:
        """Note the bytes that were taken beside the models themselves."""
        if now >= self._begun + self._span:
            self._begun, self._peaks = now, (0, self._peaks[0])
        self._peaks = (max(taken, self._peaks[0]), self._peaks[1])

    @property
    def bytes(self) -> int:
        return min(self._most, max(self._least, *self._peaks))
