"""One trace under several policies and several assumptions about contention, in figures."""

import statistics
from bisect import bisect_right
from collections.abc import Callable, Sequence

from msgspec import Struct

from sublet.policy.admission import Rules
from sublet.tools.loadtest.figures import quantile
from sublet.tools.replay.contenders import Greedy, InOrder, Ours
from sublet.tools.replay.simulator import Policy, Replayed, SimulatedRun, replay
from sublet.tools.replay.trace import TraceJob

SAID = {
    "one": "one job at a time on each device, in order",
    "slots2": "2 equal slots on each device, in order",
    "slots4": "4 equal slots on each device, in order; a large job takes several",
    "best": "by memory, tightest device, in order; nobody passes",
    "greedy": "by memory; whoever fits goes, with no bound for the others",
    "ours": "the broker's policy: passing is bounded",
}
CONTENTION: dict[str, Callable[[TraceJob], float]] = {
    "none": lambda job: 0.0,
    "drawn": lambda job: job.busy,
    "full": lambda job: 1.0,
}
ASSUMED = {
    "none": "no contention: jobs that share a device never slow each other down",
    "drawn": "drawn contention: alone, a job keeps the device busy for 50 % on average",
    "full": "full contention: each job alone keeps the device busy all the time",
}


class Figures(Struct, frozen=True):
    """What one policy made of the trace; times in seconds."""

    policy: str
    contention: str
    mean: float
    """From submission to the end."""
    median: float
    p95: float
    queued: float
    """Mean, from submission to the start."""
    longest: float
    """The longest wait for a start."""
    makespan: float
    memory: float
    """The share of the devices' memory that jobs used."""
    broken: int | None
    """Starts that passed the first in line after its bound. From what happened alone, for one
    device and one class; else as ours counts them itself, and None for the others."""
    decision: float
    """Mean real time of a decision."""
    slowest: float
    completions: tuple[float, ...]
    """A hundred quantiles of the completion times, for the plot."""


def compare(
    jobs: list[TraceJob],
    devices: int,
    capacity: int,
    policies: Sequence[str],
    contention: Sequence[str],
    rules: Rules,
    progress: Callable[[str, int], None] = lambda what, done: None,
) -> list[Figures]:
    """All figures, contention by contention."""
    compared = []
    for assumed in contention:
        for name in policies:
            policy = _policy(name, devices, capacity, rules)
            title = f"{name}, {assumed} contention"

            def tell(done: int, title: str = title) -> None:
                progress(title, done)

            replayed = replay(jobs, devices, policy, CONTENTION[assumed], tell)
            broken = policy.broken if isinstance(policy, Ours) else None
            if devices == 1 and len({job.priority for job in jobs}) == 1:
                broken = passed(replayed.runs, rules)
            compared.append(_figures(name, assumed, replayed, broken))
    return compared


def passed(runs: Sequence[SimulatedRun], rules: Rules) -> int:
    """How many starts passed the first in line later than its limit allows; for one device.

    A job is first from when all who came before it have started. There is one first at a time, so
    these spans never overlap.
    """
    fronts: list[tuple[float, float]] = []
    before = 0.0
    for run in runs:
        led = max(run.submit, before)
        _, limit = rules.bounds(led - run.submit)
        if led + limit < run.start:
            fronts.append((led + limit, run.start))
        before = max(before, run.start)
    begins = [begin for begin, _ in fronts]
    count = 0
    for run in runs:
        at = bisect_right(begins, run.start) - 1
        count += at >= 0 and run.start < fronts[at][1]
    return count


def _policy(name: str, devices: int, capacity: int, rules: Rules) -> Policy:
    match name:
        case "one":
            return InOrder(devices, 1)
        case "slots2":
            return InOrder(devices, 2)
        case "slots4":
            return InOrder(devices, 4)
        case "best":
            return InOrder(devices, capacity)
        case "greedy":
            return Greedy(devices, capacity)
    return Ours(devices, capacity, rules)


def _figures(name: str, contention: str, of: Replayed, broken: int | None) -> Figures:
    completions = sorted(run.end - run.submit for run in of.runs)
    waits = [run.start - run.submit for run in of.runs]
    return Figures(
        policy=name,
        contention=contention,
        mean=statistics.fmean(completions),
        median=quantile(completions, 0.5),
        p95=quantile(completions, 0.95),
        queued=statistics.fmean(waits),
        longest=max(waits),
        makespan=max(run.end for run in of.runs),
        memory=of.memory,
        broken=broken,
        decision=statistics.fmean(of.decisions),
        slowest=max(of.decisions),
        completions=tuple(quantile(completions, step / 100) for step in range(101)),
    )
