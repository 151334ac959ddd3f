"""A trace under one policy, event by event.

Jobs on one device slow each other down by an explicit model: alone, a job keeps the device busy
for a share of the time (`busy`); as long as these shares add up to no more than one, nobody
notices; above that all on the device slow down in proportion. So every job on a device works at
the same rate, and a device needs one clock of work done, not one for each job.

The simulator owns time and work and checks what the policy does; it decides nothing.
"""

import heapq
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from msgspec import Struct

from sublet.errors import InternalError
from sublet.tools.replay.trace import TraceJob

Start = tuple[int, int]
"""A job's number and the device it starts on."""


class Policy(Protocol):
    """What decides. It hears of everything that happens before it is asked."""

    def came(self, job: TraceJob, now: float) -> None:
        """A job was submitted."""

    def left(self, job: TraceJob, device: int, now: float) -> None:
        """A job has ended."""

    def decide(self, now: float) -> Iterable[Start]:
        """The jobs that start now, and on which device."""


class SimulatedRun(Struct, frozen=True):
    """What happened to one job."""

    submit: float
    start: float
    end: float
    device: int


class Replayed(Struct, frozen=True):
    """What happened to all jobs of a replay."""

    runs: tuple[SimulatedRun, ...]
    memory: float
    """The share of all memory that jobs used, from the first submission to the last end."""
    decisions: tuple[float, ...]
    """Seconds that each decision took, by the clock of the replay."""


class _Device:
    """One device, and the work that was done on it."""

    def __init__(self) -> None:
        self.at = 0.0
        self.work = 0.0
        self.rate = 1.0
        self.ends: list[tuple[float, int]] = []
        self.jobs: dict[int, tuple[float, float]] = {}
        self.stamp = 0

    def advance(self, now: float) -> None:
        self.work += (now - self.at) * self.rate
        self.at = now

    def change(self) -> float | None:
        """Who is here has changed: when does the next one end?"""
        self.stamp += 1
        self.rate = 1 / max(1.0, sum(busy for busy, _ in self.jobs.values()))
        if not self.ends:
            return None
        return self.at + max(0.0, self.ends[0][0] - self.work) / self.rate


def replay(
    jobs: list[TraceJob],
    devices: int,
    policy: Policy,
    contention: Callable[[TraceJob], float],
    progress: Callable[[int], None] = lambda done: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Replayed:
    """Run all jobs to their end. `contention` says how busy a job keeps its device; decisions are
    timed by `clock`."""
    machine = [_Device() for _ in range(devices)]
    runs: list[SimulatedRun | None] = [None] * len(jobs)
    events: list[tuple[float, int, int]] = []
    waiting: set[int] = set()
    decisions: list[float] = []
    came = done = 0
    now = used = area = 0.0
    while done < len(jobs):
        then = min(
            events[0][0] if events else float("inf"),
            jobs[came].submit if came < len(jobs) else float("inf"),
        )
        if then == float("inf"):
            raise InternalError(f"{len(waiting)} jobs wait and nothing runs")
        area += used * (then - now)
        now = then
        while events and events[0][0] <= now:
            _, number, stamp = heapq.heappop(events)
            device = machine[number]
            if stamp != device.stamp:
                continue
            device.advance(now)
            _, job = heapq.heappop(device.ends)
            _, started = device.jobs.pop(job)
            used -= jobs[job].share
            runs[job] = SimulatedRun(jobs[job].submit, started, now, number)
            done += 1
            policy.left(jobs[job], number, now)
            _expect(events, number, device)
            progress(done)
        while came < len(jobs) and jobs[came].submit <= now:
            waiting.add(came)
            policy.came(jobs[came], now)
            came += 1
        began = clock()
        starts = policy.decide(now)
        decisions.append(clock() - began)
        for job, number in starts:
            device = machine[number]
            waiting.remove(job)
            device.advance(now)
            device.jobs[job] = (contention(jobs[job]), now)
            heapq.heappush(device.ends, (device.work + jobs[job].duration, job))
            used += jobs[job].share
            # A share is a float: the sums of those that fit exactly may not.
            if sum(jobs[other].share for other in device.jobs) > 1 + 1e-6:
                raise InternalError(f"job {job} does not fit on device {number}")
            _expect(events, number, device)
    return Replayed(
        runs=tuple(run for run in runs if run is not None),
        memory=area / (now * devices) if now else 0.0,
        decisions=tuple(decisions),
    )


def _expect(events: list[tuple[float, int, int]], number: int, device: _Device) -> None:
    end = device.change()
    if end is not None:
        heapq.heappush(events, (end, number, device.stamp))
