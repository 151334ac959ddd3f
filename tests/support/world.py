"""A machine in miniature on which plans are carried out, and checked, step by step."""

import random

from msgspec.structs import replace

from sublet.policy.admission import Plan, Rules, plan
from sublet.policy.capacities import Capacities
from sublet.policy.capacity import Capacity, Holding, Service
from sublet.policy.wait_queue import Candidate, Offer, Priority, WaitQueue
from sublet.units import MiB
from support.jobs import device

RULES = Rules(patience=10.0, limit=30.0, stretch=0.25)


def offer(size: int, *names: str, beside: int = 0) -> Offer:
    """So many MiB on these devices."""
    return Offer(names or ("gpu0",), size * MiB, (size + beside) * MiB, "as asked")


def candidate(
    job: int,
    *offers: Offer,
    since: float = 0.0,
    priority: Priority = "normal",
    service: Service = "guaranteed",
    expected: float | None = None,
    held: str = "",
    spread: bool = False,
) -> Candidate:
    return Candidate(job, job, offers, since, priority, service, expected, held, spread)


class World:
    """Devices of some MiB each, the leases on them, and who waits. Every plan is checked."""

    def __init__(self, capacities: dict[str, int], rules: Rules = RULES) -> None:
        self.rules = rules
        self.now = 0.0
        self.devices = {name: device(name, size * MiB) for name, size in capacities.items()}
        self.holdings: dict[int, tuple[str, Holding]] = {}
        self.strangers = dict.fromkeys(capacities, 0)
        self.kept = Capacities(few=0)
        """What a planner keeps that never looks at all devices."""
        self.queue = WaitQueue()
        self.known: dict[int, Candidate] = {}
        self.finished: set[int] = set()

    def capacities(self) -> list[Capacity]:
        return [self._capacity(name) for name in self.devices]

    def _capacity(self, name: str) -> Capacity:
        held = tuple(holding for where, holding in self.holdings.values() if where == name)
        taken = sum(one.charge for one in held) + self.strangers[name]
        one = self.devices[name]
        return Capacity(one, one.capacity - taken, (), self.strangers[name], held)

    def submit(self, one: Candidate) -> None:
        self.known[one.job] = one
        self.queue.put(one)

    def end(self, job: int) -> None:
        """Its exit was seen."""
        del self.holdings[job]
        self.finished.add(job)

    def requeue(self, job: int) -> None:
        """Its exit was seen, and it is to run again."""
        del self.holdings[job]
        self.submit(self.known[job])

    def decide(self) -> Plan:
        """Plan, check the plan, carry it out."""
        capacities = self.capacities()
        made = plan(capacities, self.queue, self.now, self.rules)
        check_pure(made, capacities, self.queue, self.now, self.rules)
        for capacity in capacities:
            self.kept.put(capacity)
        assert plan(self.kept, self.queue, self.now, self.rules) == made
        check_room(made, capacities)
        check_bound(made, capacities, self.queue, self.now, self.rules)
        check_preemption(made, capacities, self.queue)
        check_promises(made, capacities, self.queue)
        for grant in made.grants:
            one = self.known[grant.job]
            end = None if one.expected is None else self.now + one.expected
            holding = Holding(grant.job, grant.charge, "", one.service, since=self.now, end=end)
            self.holdings[grant.job] = (grant.device, holding)
        for stop in made.preempt:
            where, holding = self.holdings[stop.job]
            self.holdings[stop.job] = (where, replace(holding, stopping=True))
        self.queue.follow(made, self.now)
        check_idle(made, self.capacities(), self.queue)
        self.check_nobody_lost()
        return made

    def check_nobody_lost(self) -> None:
        """Everybody who was accepted waits, holds or has finished, and only one of these."""
        waiting = {one.job for one in self.queue}
        assert len(waiting) == len(self.queue)
        assert waiting | set(self.holdings) | self.finished == set(self.known)
        assert len(waiting) + len(self.holdings) + len(self.finished) == len(self.known)

    def drain(self) -> None:
        """With nobody new and no strangers, everybody gets to the end."""
        self.strangers = dict.fromkeys(self.strangers, 0)
        for one in list(self.queue):
            self.submit(replace(one, held=""))
        self.decide()
        while self.holdings:
            self.now += 1.0
            self.end(min(self.holdings))
            self.decide()
        assert not len(self.queue)


def check_pure(
    made: Plan, capacities: list[Capacity], queue: WaitQueue, now: float, rules: Rules
) -> None:
    """The same snapshot gives the same plan, in whatever order it is told."""
    assert plan(capacities, queue, now, rules) == made
    draw = random.Random(0)
    shuffled = list(queue)
    draw.shuffle(shuffled)
    other = WaitQueue(shuffled)
    other.led, other.promised = dict(queue.led), dict(reversed(queue.promised.items()))
    assert plan(draw.sample(capacities, len(capacities)), other, now, rules) == made


def check_room(made: Plan, capacities: list[Capacity]) -> None:
    """Nobody is given what is not free, and nobody twice."""
    for capacity in capacities:
        charged = sum(g.charge for g in made.grants if g.device == capacity.device.id)
        assert charged <= max(0, capacity.free)
    granted = [grant.job for grant in made.grants]
    assert len(set(granted)) == len(granted)
    assert not set(granted) & set(made.promised)


def check_bound(
    made: Plan, capacities: list[Capacity], queue: WaitQueue, now: float, rules: Rules
) -> None:
    """After its patience, room is reserved for the first; after its limit, nobody passes it."""
    reachable = {capacity.device.id: capacity.reachable for capacity in capacities}
    for job in made.heads:
        one = queue.get(job)
        assert one is not None
        led = queue.led.get(job, now)
        patience, limit = rules.bounds(led - one.since)
        if now - led < patience:
            assert job not in made.reserved.values()
            continue
        possible = {
            name
            for offer in one.offers
            for name in offer.devices
            if offer.charge <= reachable[name]
        }
        if job not in made.reserved.values():
            assert possible <= set(made.reserved)
            continue
        if now - led >= limit:
            (where,) = (name for name, owner in made.reserved.items() if owner == job)
            for grant in made.grants:
                other = queue.get(grant.job)
                assert other is not None
                passes = (other.service, other.place) > (one.service, one.place)
                assert grant.device != where or not passes or grant.job in queue.promised


def check_preemption(made: Plan, capacities: list[Capacity], queue: WaitQueue) -> None:
    """Only opportunistic ones end, for a guaranteed one, and not one of them for nothing."""
    by_name = {capacity.device.id: capacity for capacity in capacities}
    stopped: dict[int, list[Holding]] = {}
    for stop in made.preempt:
        (holding,) = (h for h in by_name[stop.device].holdings if h.job == stop.job)
        assert holding.service == "opportunistic"
        assert not holding.stopping
        one = queue.get(stop.wanted_by)
        assert one is not None
        assert one.service == "guaranteed"
        assert made.promised[stop.wanted_by] == stop.device
        stopped.setdefault(stop.wanted_by, []).append(holding)
    for job, ended in stopped.items():
        where = made.promised[job]
        if list(made.promised.values()).count(where) > 1:
            continue
        one = queue.get(job)
        assert one is not None
        need = min(offer.charge for offer in one.offers if where in offer.devices)
        capacity = by_name[where]
        free = capacity.free - sum(g.charge for g in made.grants if g.device == where)
        free += sum(holding.charge for holding in capacity.holdings if holding.stopping)
        gained = sum(holding.charge for holding in ended)
        assert free + gained >= need
        assert all(free + gained - holding.charge < need for holding in ended)


def check_promises(made: Plan, capacities: list[Capacity], queue: WaitQueue) -> None:
    """Room that others were stopped for is taken by nobody else, whoever is first in line."""
    free = {capacity.device.id: capacity.free for capacity in capacities}
    for job, where in queue.promised.items():
        one = queue.get(job)
        assert one is not None
        need = min(offer.charge for offer in one.offers if where in offer.devices)
        others = [name for other, name in queue.promised.items() if other != job]
        if not one.held and where not in others and need <= free[where]:
            assert job in {grant.job for grant in made.grants}


def check_idle(made: Plan, capacities: list[Capacity], queue: WaitQueue) -> None:
    """Nobody who fits waits, except where room is reserved or promised."""
    taken = {*made.reserved, *made.promised.values()}
    for one in queue:
        if one.held:
            continue
        for offer in one.offers:
            for capacity in capacities:
                if capacity.device.id in offer.devices and capacity.device.id not in taken:
                    assert capacity.free < offer.charge
