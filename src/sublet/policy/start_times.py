"""When those who wait will start, as far as anybody can tell.

One pass through the queue in its order, each job on the device that is the first to have room for
it, nobody passing anybody. What is known of ends is used; a lease of which nothing is known is
taken to run as long again as it has run already; where there is nothing to go by, the answer is
None.
"""

import heapq
import math
from collections.abc import Collection, Iterable

from sublet.policy.capacity import Capacity, Holding
from sublet.policy.wait_queue import Candidate, Offer, Part, WaitQueue

_STOPPING = 10.0
"""Seconds that a program which was asked to end may take."""
_SHORTEST = 30.0
"""A lease that was just granted is not taken to end at once."""


def forecast(
    capacities: Iterable[Capacity],
    turn: Iterable[Candidate],
    now: float,
    jobs: Collection[int],
    usual: float | None = None,
) -> dict[int, float | None]:
    """Seconds until each of these jobs starts.

    `turn` are those who wait, in the order in which they are served (`in_turn`). `usual` is what a
    program runs for of which nothing is known.
    """
    starts: dict[int, float | None] = dict.fromkeys(jobs)
    devices = {capacity.device.id: _Device(capacity, now, usual) for capacity in capacities}
    missing = len(starts)
    for one in turn:
        if not missing:
            break
        start = _start(one, devices, usual)
        if one.job in starts:
            missing -= 1
            starts[one.job] = None if start is None else max(0.0, start - now)
    return starts


def in_turn(queue: WaitQueue) -> list[Candidate]:
    """The order in which those who wait are served: guaranteed ones first."""
    everyone = list(queue)
    return [
        *(one for one in everyone if one.service == "guaranteed"),
        *(one for one in everyone if one.service == "opportunistic"),
    ]


class _Device:
    """A device at the moment up to which it is planned."""

    def __init__(self, capacity: Capacity, now: float, usual: float | None) -> None:
        self.at = now
        self.free = capacity.free + sum(one.holds for one in capacity.idle)
        self.reachable = self.free + sum(one.charge for one in capacity.holdings)
        self.ends = [(_end(one, now, usual), one.charge) for one in capacity.holdings]
        heapq.heapify(self.ends)

    def advance(self, charge: int) -> None:
        """Let time pass until this much room is free."""
        while self.free < charge and self.ends:
            end, freed = heapq.heappop(self.ends)
            self.at = max(self.at, end)
            self.free += freed

    def take(self, charge: int, start: float, run: float | None) -> None:
        self.free -= charge
        heapq.heappush(self.ends, (math.inf if run is None else start + run, charge))


def _start(one: Candidate, devices: dict[str, _Device], usual: float | None) -> float | None:
    if one.held:
        return None
    chosen: list[tuple[int, str, Offer]] = []
    for part in one.parts or (Part(one.job, one.offers),):
        taken = {name for job, name, _ in chosen if job == part.job}
        options = [
            (there.at, -there.free, name, number)
            for number, offer in enumerate(part.offers)
            for name in offer.devices
            if name not in taken
            and (there := devices.get(name)) is not None
            and offer.charge <= there.reachable
        ]
        if not options:
            return None
        _, _, name, number = min(options)
        chosen.append((part.job, name, part.offers[number]))
        devices[name].advance(part.offers[number].charge)
    start = max(devices[name].at for _, name, _ in chosen)
    for _, name, offer in chosen:
        devices[name].take(offer.charge, start, one.expected if one.expected is not None else usual)
    return None if math.isinf(start) else start


def _end(one: Holding, now: float, usual: float | None) -> float:
    if one.stopping:
        return now + _STOPPING
    if one.end is not None and one.end > now:
        return one.end
    if one.since is not None:
        return now + max(now - one.since, _SHORTEST)
    return math.inf if usual is None else now + usual
