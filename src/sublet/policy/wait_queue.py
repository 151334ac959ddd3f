"""The jobs that wait, in their order, found by size.

A job's place is fixed when it comes: its class, and how long it has waited, weigh against each
other by `AGEING`, and both sides of that scale move at the same speed. So nothing has to be sorted
again as time goes by, and only those who come within `AGEING` after a job can ever be put before it
for their class. Within a class, the submission number alone decides.

The queue also remembers, from one plan to the next, since when a job has been first and could not
start, and which room was promised to whom. It decides nothing.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from sublet.policy.capacity import Service

if TYPE_CHECKING:
    from sublet.policy.admission import Plan

Priority = Literal["high", "normal", "low"]

AGEING = 4 * 3600.0
"""Seconds of waiting that make up for one class of priority."""
NEVER = 1 << 62
"""More than any device has."""

_RANKS: dict[Priority, int] = {"high": 0, "normal": 1, "low": 2}
_SMALLEST_TREE = 16
_Number = TypeVar("_Number", int, float)


class Offer(Struct, frozen=True):
    """What a job would be given on each of these devices; kept until what it rests on changes."""

    devices: tuple[str, ...]
    ceiling: int
    charge: int
    """The ceiling and the cost of one more process."""
    basis: str = ""
    roomy: bool = False
    """Sized with so much room that the allocator wastes nothing, see `sizing.Size`."""
    most: int = 0
    """What the ceiling may be raised to while the program runs; 0 if never."""


class Part(Struct, frozen=True):
    """One lease of a group. Several parts may be of one job: it gets several leases then."""

    job: int
    offers: tuple[Offer, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device it could go to."""
        return _devices(self.offers)


class Candidate(Struct, frozen=True):
    """A job that waits, or a group of jobs whose leases are granted all together or not at all."""

    job: int
    order: int
    """The submission number: what comes first within a class."""
    offers: tuple[Offer, ...]
    """Only devices that could give it its lease when empty; none means it can never start."""
    since: float
    """When it came, on the clock of the plan."""
    priority: Priority = "normal"
    service: Service = "guaranteed"
    expected: float | None = None
    """How many seconds it is expected to run; None where nobody can tell."""
    held: str = ""
    """Why it cannot start, whatever is free; empty if it can."""
    spread: bool = False
    """Goes where the fewest are, instead of where it leaves the least."""
    parts: tuple[Part, ...] = ()
    """The leases of a group, of which `job` is one; empty for a single job. `offers` are then those
    of its largest part."""
    nursery: int | None = None
    """The nursery from which it comes, and which is not ended for it; None if it needs none."""

    @classmethod
    def of_group(cls, parts: tuple[Part, ...], order: int, since: float) -> "Candidate":
        """A group, named by the first job in it."""
        largest = max(parts, key=lambda part: (_smallest(part.offers), -part.job))
        first = min(part.job for part in parts)
        return cls(first, order, largest.offers, since, parts=parts)

    @classmethod
    def together(cls, ones: Sequence["Candidate"]) -> "Candidate":
        """One candidate for jobs that start all together or not at all; the first gives it its
        name and its place."""
        parts = tuple(part for one in ones for part in one.parts or (Part(one.job, one.offers),))
        runs = [one.expected for one in ones if one.expected is not None]
        return replace(
            ones[0],
            offers=cls.of_group(parts, 0, 0.0).offers,
            expected=max(runs) if len(runs) == len(ones) else None,
            held=next((one.held for one in ones if one.held), ""),
            parts=parts,
        )

    @property
    def place(self) -> tuple[float, int, int]:
        """Where it stands among all that wait; the smallest is first."""
        return (self.since + AGEING * _RANKS[self.priority], self.order, self.job)

    @property
    def smallest(self) -> int:
        """The least that could let it start; `NEVER` if nothing could."""
        if self.held or not all(part.offers for part in self.parts):
            return NEVER
        return _smallest(self.offers)

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device it could go to."""
        if not self.parts:
            return _devices(self.offers)
        return tuple(sorted({name for part in self.parts for name in part.devices}))


def _smallest(offers: tuple[Offer, ...]) -> int:
    return min((offer.charge for offer in offers), default=NEVER)


def _devices(offers: tuple[Offer, ...]) -> tuple[str, ...]:
    if len(offers) == 1:
        return offers[0].devices
    return tuple(sorted({name for offer in offers for name in offer.devices}))


class Reach(Struct, frozen=True):
    """How much is within reach of which candidates."""

    anybody: int
    brief: int = -1
    """For those that are expected to run no longer than `within`."""
    within: float = 0.0

    def includes(self, one: Candidate) -> bool:
        """Whether this job may find room; if not, it certainly does not."""
        return one.smallest <= self.anybody or (
            one.smallest <= self.brief and _run(one) <= self.within
        )


class Lane:
    """Those of one class that wait for the same devices, in order.

    Trees of minima over their sizes and run times find the next one that is small enough, or small
    and brief enough, without looking at those between. Who leaves, leaves a gap: a job that comes
    back finds its old place.
    """

    def __init__(self, service: Service, devices: tuple[str, ...]) -> None:
        self.service = service
        self.devices = devices
        self._keys: list[tuple[int, int]] = []
        self._entries: list[Candidate | None] = []
        self._live = 0
        self._build()

    def __len__(self) -> int:
        return self._live

    def __iter__(self) -> Iterator[Candidate]:
        return (one for one in self._entries if one is not None)

    def __getitem__(self, at: int) -> Candidate:
        one = self._entries[at]
        assert one is not None
        return one

    def put(self, one: Candidate) -> None:
        """Take a job in, or replace what is known of it."""
        key = (one.order, one.job)
        at = bisect_left(self._keys, key)
        if at == len(self._keys) or self._keys[at] != key:
            self._keys.insert(at, key)
            self._entries.insert(at, one)
            self._live += 1
            # Built again when it is next read: many may come at once, in any order.
            self._stale |= at < len(self._keys) - 1 or len(self._keys) > self._leaves
        else:
            self._live += self._entries[at] is None
            self._entries[at] = one
        self._write(at, one.smallest, _run(one))

    def take(self, one: Candidate) -> None:
        """Remove a job; its place stays."""
        at = bisect_left(self._keys, (one.order, one.job))
        self._entries[at] = None
        self._live -= 1
        self._write(at, NEVER, math.inf)
        if self._live < len(self._entries) // 4 and len(self._entries) > _SMALLEST_TREE:
            left = [
                (key, entry) for key, entry in zip(self._keys, self._entries, strict=True) if entry
            ]
            self._keys = [key for key, _ in left]
            self._entries = [entry for _, entry in left]
            self._stale = True

    def find(self, start: int, reach: Reach) -> int | None:
        """The first place from `start` on with a job that may fit within this reach."""
        if self._stale:
            self._build()
        sizes, runs, leaves = self._sizes, self._runs, self._leaves
        anybody, brief, within = reach.anybody, reach.brief, reach.within
        if start >= leaves:
            return None
        at = start + leaves
        while True:
            size = sizes[at]
            if size <= anybody or (size <= brief and runs[at] <= within):
                if at >= leaves:
                    return at - leaves
                at *= 2
                continue
            # On to the right; the smallest and the briefest below a node need not be the same.
            while at & 1:
                at >>= 1
            if not at:
                return None
            at += 1

    def _write(self, at: int, size: int, run: float) -> None:
        if self._stale:
            return
        sizes, runs = self._sizes, self._runs
        at += self._leaves
        sizes[at], runs[at] = size, run
        while at > 1:
            size, run = min(size, sizes[at ^ 1]), min(run, runs[at ^ 1])
            at >>= 1
            if sizes[at] == size and runs[at] == run:
                return
            sizes[at], runs[at] = size, run

    def _build(self) -> None:
        self._stale = False
        leaves = _SMALLEST_TREE
        while leaves < 2 * len(self._entries):
            leaves *= 2
        self._leaves = leaves
        gap = leaves - len(self._entries)
        smallest = [NEVER if entry is None else entry.smallest for entry in self._entries]
        briefest = [math.inf if entry is None else _run(entry) for entry in self._entries]
        self._sizes = _minima([NEVER] * leaves + smallest + [NEVER] * gap)
        self._runs = _minima([math.inf] * leaves + briefest + [math.inf] * gap)


class WaitQueue:
    """All jobs that wait. Its owner puts and takes; plans only read."""

    def __init__(self, waiting: Iterable[Candidate] = ()) -> None:
        self._waiting: dict[int, Candidate] = {}
        self._lanes: dict[tuple[Service, Priority, tuple[str, ...]], Lane] = {}
        self.led: dict[int, float] = {}
        """Since when these jobs have been first and could not start."""
        self.promised: dict[int, str] = {}
        """For these jobs others were stopped: the device where the room is theirs."""
        self.reserved: dict[str, int] = {}
        """On these devices nobody passes the job that is first."""
        for one in waiting:
            self.put(one)

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, job: int) -> bool:
        return job in self._waiting

    def __iter__(self) -> Iterator[Candidate]:
        """All candidates, the first one first."""
        keyed = []
        for lane in self._lanes.values():
            # Nobody is before one who has a smaller number in the same lane.
            after = -math.inf
            for one in lane:
                moment, order, job = one.place
                after = max(after, moment)
                keyed.append(((after, order, job), one))
        keyed.sort(key=itemgetter(0))
        return (one for _, one in keyed)

    def get(self, job: int) -> Candidate | None:
        """What is known of a job that waits."""
        return self._waiting.get(job)

    def lanes(self, service: Service) -> list[Lane]:
        """The lanes of a class of service that are not empty."""
        return [lane for lane in self._lanes.values() if lane.service == service and len(lane)]

    def put(self, one: Candidate) -> None:
        """Take a job in, or replace what is known of it; costs nothing if nothing has changed."""
        known = self._waiting.get(one.job)
        if known is one:
            return
        key = (one.service, one.priority, one.devices)
        if known is not None and (_key(known) != key or known.order != one.order):
            self._lanes[_key(known)].take(known)
        if key not in self._lanes:
            self._lanes[key] = Lane(one.service, one.devices)
        self._lanes[key].put(one)
        self._waiting[one.job] = one

    def take(self, job: int) -> None:
        """Remove a job: it was granted, or is not wanted any more."""
        one = self._waiting.pop(job, None)
        if one is None:
            return
        key = _key(one)
        self._lanes[key].take(one)
        if not len(self._lanes[key]):
            del self._lanes[key]
        self.led.pop(job, None)
        self.promised.pop(job, None)

    def keep(self, waiting: Iterable[Candidate]) -> None:
        """Make the queue hold exactly these jobs."""
        these = {one.job: one for one in waiting}
        for job in [job for job in self._waiting if job not in these]:
            self.take(job)
        for one in these.values():
            self.put(one)

    def follow(self, plan: "Plan", now: float) -> None:
        """Apply a plan: remove the granted jobs, and remember what it leaves for the next plan."""
        for grant in plan.grants:
            self.take(grant.job)
        for job in plan.heads:
            self.led.setdefault(job, now)
        self.promised = dict(plan.promised)
        self.reserved = dict(plan.reserved)


def _minima(tree: list[_Number]) -> list[_Number]:
    """Fill in the inner nodes above the leaves."""
    for at in range(len(tree) // 2 - 1, 0, -1):
        left, right = tree[2 * at], tree[2 * at + 1]
        tree[at] = left if left < right else right
    return tree


def _run(one: Candidate) -> float:
    return math.inf if one.expected is None else one.expected


def _key(one: Candidate) -> tuple[Service, Priority, tuple[str, ...]]:
    return (one.service, one.priority, one.devices)
