"""Who gets a lease now, who must make room, and who keeps waiting.

The rules, in the order in which they win:

1. Never more than is free. A lease counts from its grant on; memory that somebody was asked to give
   back counts once it is back.
2. Room for which others were stopped belongs to the job they were stopped for.
3. Idle nurseries are ended for a job that fits then, before any program is: the least recently
   used first, and never the one from which the job itself comes.
4. Guaranteed jobs before opportunistic ones; these only get what no guaranteed job can use now, and
   are stopped again for one that could use it: as few as will do, then as little as will do.
5. The order of the queue (`sublet.policy.wait_queue`), on the device that is left with the least
   room; one that is to be spread, on the device with the fewest others, and of these with the
   most room.
6. Whoever does not fit may be passed by whoever does. The first of those who wait for the same
   devices is passed freely for `patience` seconds; then, until `limit`, only by jobs that leave its
   start as it is, as far as anybody can tell; then by nobody. The room is reserved on the device
   where it lacks least. A job that would not fit even if every lease ended reserves nothing: it
   waits for strangers, and nobody else should.
7. A group is granted whole, each of its leases on any of its devices, or not at all. Room for
   which others were stopped is kept for it from those behind it. When it is first and has waited
   for long, room is reserved on every device that it would take if all leases ended.

Every place in the queue comes to its front, because only finitely many can ever stand before it;
and from the front it starts when the leases that were on its device at `limit` have ended.

Pure: no I/O, no clock. The same capacities, queue and moment give the same plan.
"""

import functools
import heapq
import itertools
from collections.abc import Callable, Iterable

from msgspec import Struct

from sublet.domain.nursery import Nursery, least_recent
from sublet.policy.capacities import Amounts, Capacities, members_of
from sublet.policy.capacity import Capacity, Holding, Service
from sublet.policy.groups import place
from sublet.policy.sizing import Size
from sublet.policy.wait_queue import Candidate, Lane, Offer, Reach, WaitQueue

# The words of a plan are used together; callers find them in one place.
__all__ = [
    "Candidate",
    "Capacity",
    "Grant",
    "Holding",
    "Offer",
    "Plan",
    "Preemption",
    "Rules",
    "WaitQueue",
    "plan",
]


class Rules(Struct, frozen=True):
    """How long the first in the queue lets others pass, in seconds since it came to the front."""

    patience: float = 1800.0
    limit: float = 7200.0
    stretch: float = 0.25
    """Both are at least this share of what it had waited before: where all wait for days, a bound
    of minutes would leave most of a device idle to save a large job a thousandth of its wait."""

    def bounds(self, waited: float) -> tuple[float, float]:
        """Patience and limit of a job that has waited so long before it came to the front."""
        more = self.stretch * max(0.0, waited)
        return max(self.patience, more), max(self.limit, more)


class Grant(Struct, frozen=True):
    """A job gets a lease of this size on this device."""

    job: int
    device: str
    size: Size
    charge: int


class Preemption(Struct, frozen=True):
    """This holder is to end so that another job fits."""

    job: int
    device: str
    wanted_by: int


class Plan(Struct, frozen=True):
    """What to do now, and what the next plan must know of this one (`WaitQueue.follow`)."""

    grants: tuple[Grant, ...]
    preempt: tuple[Preemption, ...]
    promised: dict[int, str]
    heads: tuple[int, ...]
    """Those who are first and cannot start."""
    reserved: dict[str, int]
    """The devices on which room is reserved, and for which job."""
    nurseries: tuple[int, ...] = ()
    """Idle nurseries that are to end."""


def plan(
    capacities: Capacities | Iterable[Capacity],
    queue: WaitQueue,
    now: float,
    rules: Rules | None = None,
) -> Plan:
    """Decide for all that wait. Costs O(grants log waiting) where sizes are alike, and a copy of
    one table of the devices if they come as `Capacities`."""
    if not isinstance(capacities, Capacities):
        capacities = Capacities(capacities)
    builder = _PlanBuilder(capacities, queue, now, rules or Rules())
    builder.keep_promises()
    builder.serve("guaranteed")
    builder.serve("opportunistic")
    return builder.done()


class _Reservation(Struct):
    """Room reserved on a device for the first in the queue."""

    job: int
    until: float | None
    """When that job can start, if the ends of those before it are known."""
    spare: int
    """What will be left beside it then."""

    def lets(self, one: Candidate, charge: int, now: float) -> bool:
        """Whether this job may pass the leader: it ends before, or fits beside it."""
        return self.until is not None and (self.before(one, now) or charge <= self.spare)

    def before(self, one: Candidate, now: float) -> bool:
        return (
            self.until is not None and one.expected is not None and now + one.expected <= self.until
        )


class _PlanBuilder:
    """One plan in the making: what is left of each device as jobs are dealt with."""

    def __init__(self, capacities: Capacities, queue: WaitQueue, now: float, rules: Rules) -> None:
        self.capacities = capacities
        self.queue = queue
        self.now = now
        self.rules = rules
        self.free: Amounts = capacities.free.copy()
        self.joined: dict[str, int] = {}
        """How many have been granted a lease on these devices."""
        # Of all other devices nothing is coming free.
        self.yielding = sorted(capacities.yielding)
        self.coming = {name: capacities[name].coming for name in self.yielding}
        self.idle = {name: capacities[name].idle for name in self.yielding}
        self.victims: dict[str, list[Holding]] = {}
        for name in self.yielding:
            for one in capacities[name].holdings:
                if one.service == "opportunistic" and not one.stopping:
                    self.victims.setdefault(name, []).append(one)
        for held in self.victims.values():
            held.sort(key=lambda one: (one.charge, one.job))
        self.reserved: dict[str, _Reservation] = {}
        self.grants: list[Grant] = []
        self.preempt: list[Preemption] = []
        self.ended: list[int] = []
        self.promised: dict[int, str] = {}
        self.heads: list[int] = []

    def done(self) -> Plan:
        return Plan(
            grants=tuple(self.grants),
            preempt=tuple(self.preempt),
            promised=self.promised,
            heads=tuple(self.heads),
            reserved={name: reserved.job for name, reserved in self.reserved.items()},
            nurseries=tuple(self.ended),
        )

    def keep_promises(self) -> None:
        """Room for which others were stopped goes to the job they were stopped for.

        Who has found room elsewhere in the meantime does not wait for it.
        """
        owed = [
            (one, name) for job, name in self.queue.promised.items() if (one := self._live(job))
        ]
        owed.sort(key=lambda pair: pair[0].place)
        aside: list[tuple[Candidate, str, int, int]] = []
        for one, name in owed:
            offer = next((offer for offer in one.offers if name in offer.devices), None)
            if offer is None or name not in self.free:
                continue
            if offer.charge <= self.free[name]:
                self._grant(one, offer, name)
            elif offer.charge <= self._soon_free(name):
                self.promised[one.job] = name
                aside.append((one, name, *self._set_aside(one, offer, name, [])))
        for one, name, free, coming in aside:
            if self._fit(one):
                del self.promised[one.job]
                self.free.put(name, self.free[name] + free)
                if coming:
                    self.coming[name] += coming

    def serve(self, service: Service) -> None:
        """Deal with one class of service in the order of the queue.

        Until the first who cannot start is known, everybody is looked at; from then on only those
        small enough for what is left.
        """
        lanes = self.queue.lanes(service)
        fronts: set[tuple[str, ...]] = set()
        heap: list[tuple[tuple[float, int, int], int, int]] = []

        def push(number: int, start: int) -> None:
            at = lanes[number].find(start, self._reach(lanes[number], fronts))
            if at is not None:
                heapq.heappush(heap, (lanes[number][at].place, number, at))

        for number in range(len(lanes)):
            push(number, 0)
        while heap:
            _, number, at = heapq.heappop(heap)
            lane = lanes[number]
            one = lane[at]
            if not self._reach(lane, fronts).includes(one):
                # It was small enough before others were served.
                push(number, at + 1)
                continue
            stuck = not self._settled(one) and not self._serve(one)
            if stuck and lane.devices not in fronts and self._lead(one):
                fronts.add(lane.devices)
            push(number, at + 1)

    def _reach(self, lane: Lane, fronts: set[tuple[str, ...]]) -> Reach:
        """More than this cannot be had in this lane now."""
        if lane.devices not in fronts:
            most = self.capacities.reachable.most(lane.devices, _any)
            return Reach(-1 if most is None else most[0])
        members = members_of(lane.devices)
        # Of those that are not looked at one by one below, nothing can be had but what is free.
        most = self.free.most(lane.devices, self._is_unreserved)
        anybody = -1 if most is None else most[0]
        brief, within = -1, 0.0
        for name in {*self.yielding, *self.reserved}:
            if name not in members or name not in self.free:
                continue
            of_it = self.free[name]
            if lane.service == "guaranteed":
                of_it = self._could_be_free(name)
            of_it += sum(one.holds for one in self.idle.get(name, ()))
            reserved = self.reserved.get(name)
            if reserved is None:
                anybody = max(anybody, of_it)
            elif reserved.until is not None:
                anybody = max(anybody, min(of_it, reserved.spare))
                brief, within = max(brief, of_it), max(within, reserved.until - self.now)
        return Reach(anybody, brief, within)

    def _is_unreserved(self, name: str) -> bool:
        return name not in self.reserved

    def _soon_free(self, name: str) -> int:
        return self.free[name] + self.coming.get(name, 0)

    def _could_be_free(self, name: str) -> int:
        return self._soon_free(name) + sum(one.charge for one in self.victims.get(name, ()))

    def _serve(self, one: Candidate) -> bool:
        """Grant it, or make room for it; False if neither can be done."""
        if self._fit(one):
            return True
        if not self.yielding:
            return False
        if one.parts:
            return one.service == "guaranteed" and self._make_room_for_group(one)
        return self._make_room(one)

    def _fit(self, one: Candidate) -> bool:
        """Grant it where it leaves the least, or has the least company, if it fits anywhere."""
        if one.parts:
            return self._fit_group(one)
        best: tuple[tuple[int, int, str], Offer] | None = None
        for offer in one.offers:
            rank = self._spread(one, offer) if one.spread else self._tightest(one, offer)
            if rank is not None and (best is None or rank < best[0]):
                best = (rank, offer)
        if best is None:
            return False
        (_, _, name), offer = best
        self._grant(one, offer, name)
        return True

    def _tightest(self, one: Candidate, offer: Offer) -> tuple[int, int, str] | None:
        """Where this offer leaves the least."""
        found = self.free.tightest(
            offer.devices, offer.charge, lambda name: self._open(one, offer, name)
        )
        return None if found is None else (0, found[0] - offer.charge, found[1])

    def _spread(self, one: Candidate, offer: Offer) -> tuple[int, int, str] | None:
        """Where the fewest others are, and of these the most is left. Looks at each device."""
        ranks = (
            (self._company(name), offer.charge - self.free[name], name)
            for name in offer.devices
            if max(0, offer.charge) <= self.free.get(name, -1) and self._open(one, offer, name)
        )
        return min(ranks, default=None)

    def _company(self, name: str) -> int:
        capacity = self.capacities[name]
        return len(capacity.holdings) + (capacity.strangers > 0) + self.joined.get(name, 0)

    def _fit_group(self, group: Candidate) -> bool:
        """Grant all leases of a group, if there is room for all of them at once."""
        left = {name: self._left(group, name) for name in group.devices if name in self.free}
        placed = place(group.parts, left, group.spread)
        for part, offer, name in placed or ():
            self._grant(group, offer, name, part.job)
        return placed is not None

    def _left(self, one: Candidate, name: str) -> int:
        """What this candidate may take of a device, beside what is reserved there for another."""
        reserved = self.reserved.get(name)
        if reserved is None or reserved.before(one, self.now):
            return self.free[name]
        return -1 if reserved.until is None else min(self.free[name], reserved.spare)

    def _open(self, one: Candidate, offer: Offer, name: str) -> bool:
        reserved = self.reserved.get(name)
        if reserved is None:
            return True
        return reserved.lets(one, offer.charge, self.now)

    def _make_room(self, one: Candidate) -> bool:
        """Promise it the device where the fewest, then the smallest, have to end for it. For an
        opportunistic job nurseries are ended, and nothing is promised."""
        guaranteed = one.service == "guaranteed"
        best: tuple[int, int, str, Offer, list[Holding], list[Nursery]] | None = None
        for offer in one.offers:
            members = members_of(offer.devices)
            for name in self.yielding:
                if name not in members or not self._open(one, offer, name):
                    continue
                lacking = offer.charge - self._soon_free(name)
                idle = [nursery for nursery in self.idle[name] if nursery.pid != one.nursery]
                victims = self.victims.get(name, []) if guaranteed else []
                ended = fewest(victims, lacking - sum(nursery.holds for nursery in idle))
                if ended is None:
                    continue
                yielded = sum(holding.charge for holding in ended)
                nurseries = least_recent(idle, lacking - yielded)
                if not guaranteed and not nurseries:
                    continue
                cost = (len(ended), yielded, name)
                if best is None or cost < best[:3]:
                    best = (*cost, offer, ended, nurseries)
        if best is None:
            return False
        _, _, name, offer, ended, nurseries = best
        self._end_nurseries(name, nurseries)
        if guaranteed:
            self.promised[one.job] = name
        self._set_aside(one, offer, name, ended)
        return True

    def _end_nurseries(self, name: str, nurseries: list[Nursery]) -> None:
        """End these, so that what they hold comes free."""
        for nursery in nurseries:
            self.idle[name].remove(nursery)
            self.coming[name] += nursery.holds
            self.ended.append(nursery.pid)

    def _make_room_for_group(self, group: Candidate) -> bool:
        """Set aside what all its leases need, where that can be had by stopping others. Nothing is
        promised: the next plan finds what was stopped coming free, and does the same."""
        idle = {
            name: [nursery for nursery in self.idle.get(name, ()) if nursery.pid != group.nursery]
            for name in group.devices
            if name in self.free
        }
        could = {
            name: self._could_be_free(name) + sum(nursery.holds for nursery in idle[name])
            if self._left(group, name) == self.free[name]
            else -1
            for name in idle
        }
        placed = place(group.parts, could, group.spread)
        for _, offer, name in placed or ():
            lacking = offer.charge - self._soon_free(name)
            standing = sum(nursery.holds for nursery in idle[name])
            ended = fewest(self.victims.get(name, []), lacking - standing)
            assert ended is not None
            leaving = least_recent(idle[name], lacking - sum(one.charge for one in ended))
            idle[name] = [nursery for nursery in idle[name] if nursery not in leaving]
            self._end_nurseries(name, leaving)
            self._set_aside(group, offer, name, ended)
        return placed is not None

    def _lead(self, one: Candidate) -> bool:
        """It is the first that cannot start; once it has been so for long, room is reserved."""
        if one.parts:
            return self._lead_group(one)
        reachable = self.capacities.reachable

        def can(name: str, offer: Offer) -> bool:
            needed = self.capacities[name].needed_for(one.nursery)
            return offer.charge <= reachable[name] - needed

        if not any(
            reachable.most(offer.devices, functools.partial(can, offer=offer))
            for offer in one.offers
        ):
            return False
        self.heads.append(one.job)
        led = self.queue.led.get(one.job, self.now)
        patience, limit = self.rules.bounds(led - one.since)
        waited = self.now - led
        chosen = None
        if waited >= patience:
            options = (self._least_lacking(offer, can) for offer in one.offers)
            chosen = min(filter(None, options), key=lambda option: option[:2], default=None)
        if chosen is not None:
            _, name, offer = chosen
            until, spare = None, 0
            if waited < limit:
                until, spare = self._start_of(offer.charge, name)
            self.reserved[name] = _Reservation(one.job, until, spare)
        return True

    def _least_lacking(
        self, offer: Offer, can: Callable[[str, Offer], bool]
    ) -> tuple[int, str, Offer] | None:
        """How much this offer lacks, and where it lacks least, of the devices not reserved yet."""
        members, yielding = members_of(offer.devices), self.capacities.yielding
        most = self.free.most(
            offer.devices,
            lambda name: name not in yielding and self._is_unreserved(name) and can(name, offer),
        )
        options = [] if most is None else [(offer.charge - most[0], most[1], offer)]
        options += [
            (offer.charge - self._soon_free(name), name, offer)
            for name in self.yielding
            if name in members and self._is_unreserved(name) and can(name, offer)
        ]
        return min(options, key=lambda option: option[:2], default=None)

    def _lead_group(self, group: Candidate) -> bool:
        """The same for a group: room is reserved wherever its leases would go."""
        reachable = {
            name: self.capacities.reachable[name] - self.capacities[name].needed_for(group.nursery)
            for name in group.devices
            if name in self.free
        }
        if place(group.parts, reachable, group.spread) is None:
            return False
        self.heads.append(group.job)
        led = self.queue.led.get(group.job, self.now)
        patience, limit = self.rules.bounds(led - group.since)
        open_to_it = {name: n for name, n in reachable.items() if name not in self.reserved}
        placed = None
        if self.now - led >= patience:
            placed = place(group.parts, open_to_it, group.spread)
        charges: dict[str, int] = {}
        for _, offer, name in placed or ():
            charges[name] = charges.get(name, 0) + offer.charge
        starts = {name: self._start_of(charge, name) for name, charge in charges.items()}
        ends = [until for until, _ in starts.values()]
        known = self.now - led < limit and None not in ends
        for name, (_, spare) in starts.items():
            until = max(end for end in ends if end is not None) if known else None
            self.reserved[name] = _Reservation(group.job, until, spare if known else 0)
        return True

    def _start_of(self, charge: int, name: str) -> tuple[float | None, int]:
        """When there is room for this charge, by the ends that are known, and what is left beside
        it then."""
        free = self.free[name] - charge
        if free >= 0:
            return self.now, free
        ends = sorted(
            (one.end, one.charge)
            for one in self.capacities[name].holdings
            # Who was expected to have ended by now may run for ever.
            if one.end is not None and one.end > self.now
        )
        for end, together in itertools.groupby(ends, key=lambda pair: pair[0]):
            free += sum(charge for _, charge in together)
            if free >= 0:
                return end, free
        return None, 0

    def _grant(self, one: Candidate, offer: Offer, name: str, job: int | None = None) -> None:
        """Grant this offer to a candidate, or to one job of a group."""
        reserved = self.reserved.get(name)
        if reserved is not None and not reserved.before(one, self.now):
            reserved.spare -= offer.charge
        self.free.put(name, self.free[name] - offer.charge)
        self.joined[name] = self.joined.get(name, 0) + 1
        self.grants.append(
            Grant(
                one.job if job is None else job,
                name,
                Size(offer.ceiling, offer.basis, offer.roomy, offer.most),
                offer.charge,
            )
        )

    def _set_aside(
        self, one: Candidate, offer: Offer, name: str, ended: list[Holding]
    ) -> tuple[int, int]:
        """Set aside what is coming free, then what is free; says how much of free and coming."""
        for holding in ended:
            self.victims[name].remove(holding)
            self.coming[name] += holding.charge
            self.preempt.append(Preemption(holding.job, name, one.job))
        from_others = min(self.coming.get(name, 0), offer.charge)
        if from_others:
            self.coming[name] -= from_others
        self.free.put(name, self.free[name] - offer.charge + from_others)
        reserved = self.reserved.get(name)
        if reserved is not None and not reserved.before(one, self.now):
            reserved.spare -= offer.charge
        return offer.charge - from_others, from_others

    def _settled(self, one: Candidate) -> bool:
        """Whether an earlier promise has dealt with this job."""
        return one.job in self.queue.promised and (
            one.job in self.promised or any(grant.job == one.job for grant in self.grants)
        )

    def _live(self, job: int) -> Candidate | None:
        one = self.queue.get(job)
        return one if one is not None and not one.held else None


def _any(name: str) -> bool:
    return True


def fewest(victims: list[Holding], lacking: int) -> list[Holding] | None:
    """As few as give so much, the last of them as small as will do; None if all are too little.

    `victims` go from small to large. Leaving any one of the chosen out would not do.
    """
    if lacking <= 0:
        return []
    left = list(victims)
    chosen: list[Holding] = []
    while left:
        enough = next((one for one in left if one.charge >= lacking), None)
        if enough is not None:
            return [*chosen, enough]
        largest = left.pop()
        chosen.append(largest)
        lacking -= largest.charge
    return None
