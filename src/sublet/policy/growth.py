"""Who may use more than was promised, when an allocation does not fit.

The rules, in the order in which they win:

1. Never more than is free, and nothing that is promised to a job that waits or reserved for it.
2. Guaranteed programs before opportunistic ones; these are stopped for a guaranteed one that lacks
   room. Of one class, whoever has waited longest.
3. A step at a time, as nobody knows how much an allocation needs: a quarter of the lease, and twice
   as much with each step. What is left over comes back at once. Whoever can be reached only once
   more gets its share of all there is.
4. Last, and only half of what is free: programs on a GPU that ask ahead of need, because XLA, which
   tries out kernels there, does not wait for memory. The rest is for those who need it.

A program that waits for memory dies if it does not get any, and a job that waits for its start does
not; so growth comes before admission. Pure: the same capacities and asks give the same plan.
"""

from collections.abc import Iterable

from msgspec import Struct

from sublet.domain.nursery import least_recent
from sublet.policy.admission import Preemption, fewest
from sublet.policy.capacity import Capacity, Holding, Service
from sublet.policy.wait_queue import WaitQueue
from sublet.policy.wait_reasons import free_text, holders_text
from sublet.units import MiB, format_bytes

LEAST_STEP = 128 * MiB
"""TensorFlow's allocator wastes less of a piece that is larger than this."""
STEP = 4
"""The first step is this part of the lease."""
LEAST_SLICE = 16 * MiB
SLICE = 8
"""The same among the processes of one program."""


class Ask(Struct, frozen=True):
    """A running program in which an allocation waits for memory."""

    job: int
    where: str
    """The capacity out of which its lease comes."""
    ceiling: int
    most: int
    since: float
    service: Service = "guaranteed"
    steps: int = 0
    """How many raises this allocation has had."""
    last: bool = False
    """Whether it can be reached only once more before it gives up."""
    need: int = 0
    """What it needs, neither more nor less; 0 if nobody knows."""
    ahead: int = 0
    """What it would have before it needs it; 0 if an allocation waits. Nobody is stopped for that,
    and it gets half of what is free at most."""

    @property
    def step(self) -> int:
        """The raise that it gets if there is room for it, in whole MiB."""
        left = self.most - self.ceiling
        if self.ahead:
            return min(-(-self.ahead // MiB) * MiB, left)
        if self.need:
            return min(-(-self.need // MiB) * MiB, left) if self.need <= left else 0
        return part(self.ceiling, left, self.steps) // MiB * MiB


class Raise(Struct, frozen=True):
    """This job's ceiling is to become so large."""

    job: int
    ceiling: int


def part(held: int, free: int, steps: int) -> int:
    """The raise of a lease that holds this much, after this many steps; at most what is free."""
    return min(max(LEAST_STEP, held // STEP) << min(steps, 20), free)


def slice_of(held: int, free: int, steps: int) -> int:
    """The same for a process, of what its lease has free: less at first, because its pool may take
    all that it gets, and never gives it back to the other processes."""
    return min(max(LEAST_SLICE, held // SLICE) << min(steps, 20), free)


class GrowthPlan(Struct, frozen=True):
    """What to do for those who ask, and why some have to wait."""

    raises: tuple[Raise, ...] = ()
    preempt: tuple[Preemption, ...] = ()
    nurseries: tuple[int, ...] = ()
    """Idle nurseries that are to end."""
    waits: dict[int, str] = {}


def plan(capacities: Iterable[Capacity], queue: WaitQueue, asks: Iterable[Ask]) -> GrowthPlan:
    """Decide for all programs that ask for more."""
    at = {capacity.device.id: capacity for capacity in capacities}
    spare = {name: _spare(capacity, queue) for name, capacity in at.items()}
    stopped: set[int] = set()
    ended: set[int] = set()
    raises, preempt, waits = [], [], {}
    order = sorted(
        asks,
        key=lambda ask: (ask.ahead > 0, ask.service != "guaranteed", ask.since, ask.job),
    )
    for index, ask in enumerate(order):
        capacity = at.get(ask.where)
        if capacity is None or ask.step <= 0:
            continue
        room = max(0, spare[ask.where]) // (2 if ask.ahead else 1) // MiB * MiB
        amount = min(ask.step, room)
        if ask.need and amount < ask.step:
            amount = 0
        elif ask.last and not ask.ahead:
            rivals = sum(other.where == ask.where for other in order[index:])
            share = max(amount, room // rivals // MiB * MiB)
            amount = min(share, (ask.most - ask.ceiling) // MiB * MiB)
        if amount > 0:
            spare[ask.where] -= amount
            raises.append(Raise(ask.job, ask.ceiling + amount))
        if amount < ask.step and not ask.ahead:
            idle = [one for one in capacity.idle if one.pid not in ended]
            lacking = ask.step - amount - capacity.coming
            victims = [one for one in _opportunistic(capacity, ask.job) if one.job not in stopped]
            if ask.service != "guaranteed":
                victims = []
            chosen = fewest(victims, lacking - sum(one.holds for one in idle))
            if chosen is None:
                # What cannot be had whole may do in part, but nobody is stopped for that.
                chosen, idle = [], [] if ask.need else idle
            stopped |= {one.job for one in chosen}
            preempt += [Preemption(one.job, ask.where, ask.job) for one in chosen]
            given = sum(one.charge for one in chosen)
            ended |= {one.pid for one in least_recent(idle, lacking - given)}
        if not amount and not ask.ahead:
            waits[ask.job] = _reason(ask, capacity, room)
    return GrowthPlan(tuple(raises), tuple(preempt), tuple(sorted(ended)), waits)


def spare_main_memory(capacities: Iterable[Capacity], queue: WaitQueue) -> int:
    """What is free of main memory, and promised to nobody: a nursery may take it."""
    main = (one for one in capacities if one.device.id == "cpu" and one.within is None)
    return sum(_spare(one, queue) for one in main)


def _spare(capacity: Capacity, queue: WaitQueue) -> int:
    """What is free and promised to nobody."""
    name = capacity.device.id
    owed = [job for job, where in queue.promised.items() if where == name]
    if (first := queue.reserved.get(name)) is not None and first not in owed:
        owed.append(first)
    return capacity.free - sum(_charge(queue, job, name) for job in owed)


def _charge(queue: WaitQueue, job: int, name: str) -> int:
    """What it would be charged there; of a gang, all of its jobs that could go there."""
    one = queue.get(job)
    if one is None:
        return 0
    asked = {part.job: part.offers for part in one.parts} or {job: one.offers}
    return sum(
        next((offer.charge for offer in offers if name in offer.devices), 0)
        for offers in asked.values()
    )


def _opportunistic(capacity: Capacity, asker: int) -> list[Holding]:
    """Those that may be stopped, from small to large."""
    found = [
        one
        for one in capacity.holdings
        if one.service == "opportunistic" and not one.stopping and one.job != asker
    ]
    return sorted(found, key=lambda one: (one.charge, one.job))


def _reason(ask: Ask, capacity: Capacity, room: int) -> str:
    """Such as "needs more than its lease of 2 GiB; 0 B of 8 GiB free; held by #7 a.py 5 GiB"."""
    text = f"needs more than its lease of {format_bytes(ask.ceiling)}; {free_text(capacity)}"
    if capacity.free > room:
        text += ", kept for those who wait"
    others = tuple(one for one in capacity.holdings if one.job != ask.job)
    holders = holders_text(capacity, others)
    return f"{text}; held by {holders}" if holders else text
