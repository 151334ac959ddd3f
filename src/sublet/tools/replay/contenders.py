"""The policies that a replay compares: ours, and what people do without it.

    one      one job at a time on each device, in order
    slots    k equal slots on each device, in order; a large job takes several
    best     by memory, the tightest device that fits, in order; who does not fit stops the line
    greedy   the same, but whoever fits goes, for ever: no bound on how long a large job is passed
    ours     the broker's admission policy (`sublet.policy.admission`)

None of them knows how long a job will run.
"""

import math
from collections import deque
from collections.abc import Iterable

from sublet.domain.device import Device
from sublet.policy import admission
from sublet.policy.capacities import Capacities
from sublet.policy.capacity import Capacity, Holding
from sublet.policy.wait_queue import Candidate, Lane, Offer, Reach, WaitQueue
from sublet.tools.replay.simulator import Start
from sublet.tools.replay.trace import TraceJob


class InOrder:
    """First come, first served, by whole parts of a device; the tightest device that fits."""

    def __init__(self, devices: int, parts: int) -> None:
        self._parts = parts
        self._free = [parts] * devices
        self._waiting: deque[TraceJob] = deque()

    def came(self, job: TraceJob, now: float) -> None:
        self._waiting.append(job)

    def left(self, job: TraceJob, device: int, now: float) -> None:
        self._free[device] += self._need(job)

    def decide(self, now: float) -> Iterable[Start]:
        starts = []
        while self._waiting:
            need = self._need(self._waiting[0])
            device = tightest(self._free, need)
            if device is None:
                break
            self._free[device] -= need
            starts.append((self._waiting.popleft().number, device))
        return starts

    def _need(self, job: TraceJob) -> int:
        return math.ceil(job.share * self._parts)


class Greedy:
    """Whoever fits, goes; those who came first are asked first."""

    def __init__(self, devices: int, capacity: int) -> None:
        self._capacity = capacity
        self._free = [capacity] * devices
        self._lane = Lane("guaranteed", ())

    def came(self, job: TraceJob, now: float) -> None:
        self._lane.put(self._candidate(job))

    def left(self, job: TraceJob, device: int, now: float) -> None:
        self._free[device] += charge(job, self._capacity)

    def decide(self, now: float) -> Iterable[Start]:
        starts = []
        at = self._lane.find(0, Reach(max(self._free)))
        while at is not None:
            one = self._lane[at]
            device = tightest(self._free, one.smallest)
            assert device is not None
            self._free[device] -= one.smallest
            starts.append((one.job, device))
            self._lane.take(one)
            at = self._lane.find(0, Reach(max(self._free)))
        return starts

    def _candidate(self, job: TraceJob) -> Candidate:
        need = charge(job, self._capacity)
        return Candidate(job.number, job.number, (Offer((), need, need),), job.submit)


class Ours:
    """The policy of the broker, unchanged."""

    def __init__(self, devices: int, capacity: int, rules: admission.Rules) -> None:
        digits = len(str(devices))
        self._capacity = capacity
        self._rules = rules
        self._names = tuple(f"gpu{number:0{digits}}" for number in range(devices))
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._holdings: list[dict[int, Holding]] = [{} for _ in range(devices)]
        self._capacities = Capacities(self._usage(number) for number in range(devices))
        self._queue = WaitQueue()
        self.broken = 0
        """Jobs that passed another one after its bound, on the device kept for it: never any."""

    def came(self, job: TraceJob, now: float) -> None:
        need = charge(job, self._capacity)
        offer = Offer(self._names, need, need)
        self._queue.put(Candidate(job.number, job.number, (offer,), job.submit, job.priority))

    def left(self, job: TraceJob, device: int, now: float) -> None:
        del self._holdings[device][job.number]
        self._capacities.put(self._usage(device))

    def decide(self, now: float) -> Iterable[Start]:
        plan = admission.plan(self._capacities, self._queue, now, self._rules)
        self._judge(plan, now)
        self._queue.follow(plan, now)
        starts = []
        for grant in plan.grants:
            device = self._numbers[grant.device]
            self._holdings[device][grant.job] = Holding(grant.job, grant.charge, since=now)
            self._capacities.put(self._usage(device))
            starts.append((grant.job, device))
        return starts

    def _judge(self, plan: admission.Plan, now: float) -> None:
        """Count what must not happen, from what was known before the plan."""
        for grant in plan.grants:
            owner = plan.reserved.get(grant.device)
            if owner is None:
                continue
            mine, first = self._queue.get(grant.job), self._queue.get(owner)
            assert mine is not None
            assert first is not None
            led = self._queue.led[owner]
            _, limit = self._rules.bounds(led - first.since)
            self.broken += now - led >= limit and mine.place > first.place

    def _usage(self, number: int) -> Capacity:
        name = self._names[number]
        device = Device(name, "gpu", "", self._capacity, number, None, "the replay")
        held = tuple(self._holdings[number].values())
        return Capacity(device, self._capacity - sum(one.charge for one in held), holdings=held)


def charge(job: TraceJob, capacity: int) -> int:
    """What a job takes of a device, in bytes."""
    return min(capacity, math.ceil(job.share * capacity))


def tightest(free: list[int], need: int) -> int | None:
    """The device that is left with the least."""
    best = None
    for number, left in enumerate(free):
        if left >= need and (best is None or left < free[best]):
            best = number
    return best
