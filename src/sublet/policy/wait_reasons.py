"""Why each job waits, in words, and about how long it still will.

Made only when somebody asks: building ten thousand texts costs more than deciding does.
"""

from collections.abc import Collection, Iterable

from sublet.policy.capacity import Capacity, Holding
from sublet.policy.start_times import forecast, in_turn
from sublet.policy.wait_queue import Candidate, Offer, WaitQueue
from sublet.units import format_bytes

_NAMED = 3


class Reasons:
    """Explains one moment: capacities and a queue as they are after a plan was applied."""

    def __init__(
        self,
        capacities: Iterable[Capacity],
        queue: WaitQueue,
        now: float,
        jobs: Collection[int] | None = None,
        usual: float | None = None,
    ) -> None:
        """`jobs` are those that will be asked about; one pass through the queue serves them all."""
        self._capacities = {capacity.device.id: capacity for capacity in capacities}
        self._queue = queue
        turn = in_turn(queue)
        asked = {one.job for one in turn} if jobs is None else jobs
        self._starts = forecast(self._capacities.values(), turn, now, asked, usual)
        self._ahead = _ahead(turn, self._starts)
        self._free = {name: free_text(capacity) for name, capacity in self._capacities.items()}
        self._holders = {
            name: holders_text(capacity, capacity.holdings)
            for name, capacity in self._capacities.items()
        }

    def start(self, job: int) -> float | None:
        """Seconds until the job starts; None where nobody can tell."""
        return self._starts.get(job)

    def why(self, job: int, estimate: bool = True) -> str:
        """Such as "needs 6.0 GiB on gpu0, 4.2 GiB of 8.0 GiB free; 2 jobs ahead; starts in about 12
        min".

        Without the estimate, the text changes only when something has happened.
        """
        one = self._queue.get(job)
        if one is None:
            return "not waiting"
        if one.held:
            return one.held
        closest = self._closest(one)
        if closest is None:
            return "no device can give it what it needs"
        offer, capacity = closest
        several = sum(part.job == one.job for part in one.parts)
        gang = len({part.job for part in one.parts}) > 1
        parts = self._each(one, several) if several > 1 else [self._lacks(one, offer, capacity)]
        if gang:
            parts = self._together(one)
        if ahead := self._ahead.get(job, 0):
            parts.append(f"{ahead} job{'s' * (ahead != 1)} ahead")
        if estimate and (start := self.start(job)) is not None:
            parts.append(_about(start))
        if several < 2 and not gang and (holders := self._holders[capacity.device.id]):
            parts.append(f"held by {holders}")
        return "; ".join(parts)

    def _closest(self, one: Candidate) -> tuple[Offer, Capacity] | None:
        """The device that lacks least is the one worth talking about."""
        promised = self._queue.promised.get(one.job)
        options = [
            (offer, self._capacities[name])
            for offer in one.offers
            for name in offer.devices
            if name in self._capacities and promised in (None, name)
        ]
        return min(
            options,
            key=lambda pair: (pair[0].charge - pair[1].free, pair[1].device.id),
            default=None,
        )

    def _each(self, one: Candidate, count: int) -> list[str]:
        """What a job with several GPUs needs of each, and what each of them has."""
        offers = {name: offer for offer in one.offers for name in offer.devices}
        needs = " or ".join(dict.fromkeys(_needs(offer) for offer in one.offers))
        parts = [f"needs {count} GPUs with {needs} each"]
        for name in sorted(offers):
            capacity = self._capacities.get(name)
            if capacity is None:
                continue
            text = f"{name} cannot be used: {capacity.fault}"
            if capacity.fault is None:
                text = f"{name} has {self._free[name]}"
                enough = offers[name].charge <= capacity.free
                holders = self._holders[name]
                text += f", held by {holders}" if holders and not enough else ""
                reserved = self._queue.reserved.get(name)
                text += f", kept for #{reserved}" if reserved not in (None, one.job) else ""
            parts.append(text)
        return parts

    def _together(self, one: Candidate) -> list[str]:
        """What the jobs of a gang need at the same time, and what their devices have."""
        least = sum(min(offer.charge for offer in part.offers) for part in one.parts)
        parts = [f"its {len(one.parts)} tasks need {format_bytes(least)} at the same time"]
        for name in one.devices:
            if (capacity := self._capacities.get(name)) is None:
                continue
            text = f"{name} has {self._free[name]}"
            if capacity.fault is not None:
                text = f"{name} cannot be used: {capacity.fault}"
            elif holders := self._holders[name]:
                text += f", held by {holders}"
            parts.append(text)
        if one.job in self._queue.reserved.values():
            parts.append("the room is kept for it")
        return parts

    def _lacks(self, one: Candidate, offer: Offer, capacity: Capacity) -> str:
        name = capacity.device.id
        where = f" on {name}" if capacity.within is None else ""
        text = f"needs {_needs(offer)}{where}, {self._free[name]}"
        if capacity.fault is not None:
            return f"needs {_needs(offer)} on {name}, which cannot be used: {capacity.fault}"
        reserved = self._queue.reserved.get(name)
        if self._queue.promised.get(one.job) == name:
            return f"{text}; others are making room for it"
        if reserved == one.job:
            return f"{text}; the room is kept for it"
        if offer.charge <= capacity.free:
            owner = reserved if reserved is not None else self._owed(name)
            return text if owner is None else f"{text}, kept for #{owner}"
        return text

    def _owed(self, name: str) -> int | None:
        return next((job for job, where in self._queue.promised.items() if where == name), None)


def _needs(offer: Offer) -> str:
    beside = offer.charge - offer.ceiling
    process = f" + {format_bytes(beside)} for its process" if beside else ""
    return f"{format_bytes(offer.ceiling)}{process}"


def free_text(capacity: Capacity) -> str:
    """How much of it is free, such as "4.2 GiB of 8.0 GiB free"."""
    if capacity.within is not None:
        held = f"{format_bytes(capacity.device.capacity)} that #{capacity.within} holds"
        return f"{format_bytes(max(capacity.free, 0))} free of the {held}"
    return f"{format_bytes(max(capacity.free, 0))} of {format_bytes(capacity.device.capacity)} free"


def _ahead(turn: list[Candidate], asked: Collection[int]) -> dict[int, int]:
    """How many that could start stand before each of these and want one of the same devices."""
    seen: dict[tuple[str, ...], int] = {}
    ahead: dict[int, int] = {}
    for one in turn:
        if one.held or not one.offers:
            continue
        mine = one.devices
        if one.job in asked:
            names = set(mine)
            ahead[one.job] = sum(n for other, n in seen.items() if not names.isdisjoint(other))
        seen[mine] = seen.get(mine, 0) + 1
    return ahead


def _about(seconds: float) -> str:
    """Roughly: who waits for minutes does not want seconds."""
    if seconds < 60:
        return "starts in under a minute"
    if (minutes := round(seconds / 60)) < 90:
        return f"starts in about {minutes} min"
    if (hours := round(seconds / 3600)) < 48:
        return f"starts in about {hours} h"
    return f"starts in about {round(seconds / 86400)} days"


def holders_text(capacity: Capacity, holdings: Iterable[Holding]) -> str:
    """The largest of these holders, and strangers, by name."""
    largest = sorted(holdings, key=lambda one: (-one.charge, one.job))[:_NAMED]
    named = [f"#{one.job} {one.name} {format_bytes(one.charge)}" for one in largest]
    if capacity.strangers:
        others = "other programs" if capacity.within is None else f"#{capacity.within} itself"
        named.append(f"{others} {format_bytes(capacity.strangers)}")
    return ", ".join(named)
