"""What a decision costs on a thousand nodes: the admission policy over a replay.

Jobs are drawn: run times like those of the Philly trace (median 1,144 s, one in ten above three
hours), memory by the quantiles of `sublet replay`. The policy keeps its tables from one decision to
the next, as any owner of a `Capacities` and a `WaitQueue` does.
"""

import math
import random
import time
import tracemalloc
from collections.abc import Mapping
from typing import NamedTuple

from bench import figures
from bench.report import Bar, Table
from sublet.policy.admission import Rules
from sublet.tools.loadtest.figures import quantile
from sublet.tools.replay.contenders import Ours
from sublet.tools.replay.simulator import replay
from sublet.tools.replay.trace import TraceJob, draw_share
from sublet.units import GiB, format_bytes

NODES, EACH = 1_000, 4
_MEDIAN, _SPREAD = 1144.0, 1.8
_MEAN = _MEDIAN * math.exp(_SPREAD**2 / 2)
_CAPACITY = 16 * GiB
_POLICY = [
    tracemalloc.Filter(True, "*/sublet/policy/*"),
    tracemalloc.Filter(True, "*/replay/contenders.py"),
]
WAYS = {
    "steady": "as many come as can be done",
    "burst": "all come within a quarter of an hour",
}


class Replayed(NamedTuple):
    """What the decisions of one replay took, and what the policy held."""

    jobs: int
    decisions: int
    median: float
    p99: float
    longest: float
    held: tuple[int, ...]
    """Bytes of the policy, its queue and its tables, after each quarter of the jobs."""
    broken: int
    """Jobs that were passed after their bound."""


def measure(quick: bool) -> dict[str, Replayed]:
    """Each way twice: once timed, once with its memory traced."""
    count = 3_000 if quick else 100_000
    return {way: _replayed(_jobs(count, way)) for way in WAYS}


def table(ways: Mapping[str, Replayed]) -> Table:
    """A row for each way."""
    return Table(
        f"decisions over {NODES:,} nodes with {EACH} devices each",
        ("way", "jobs", "decisions", "median", "p99", "longest", "memory", "at the end"),
        tuple(
            (
                way,
                f"{of.jobs:,}",
                f"{of.decisions:,}",
                *(figures.seconds(value) for value in (of.median, of.p99, of.longest)),
                format_bytes(max(of.held)),
                format_bytes(of.held[-1]),
            )
            for way, of in ways.items()
        ),
        (
            *(f"{way}: {said}." for way, said in WAYS.items()),
            "Times are the processor's. memory: the most that the policy, its queue and its tables "
            "held after a quarter, half and three quarters of the jobs.",
        ),
    )


def bars(ways: Mapping[str, Replayed]) -> list[Bar]:
    """The slowest of a hundred, and what is left of a hundred thousand jobs."""
    found = []
    for way, of in ways.items():
        found += [
            Bar(f"{way}, p99 of a decision", of.p99 * 1000, 5, "at most", "ms"),
            Bar(f"{way}, jobs passed after their bound", of.broken, 0, "at most", "jobs"),
        ]
    steady = ways["steady"].held
    # What is known of each device is there before the first quarter.
    found.append(
        Bar("steady, memory at the end to a quarter", steady[-1] / steady[0], 1.2, "at most")
    )
    return found


def _replayed(jobs: list[TraceJob]) -> Replayed:
    devices = NODES * EACH
    policy = Ours(devices, _CAPACITY, Rules())
    # Processor time: what else the machine does is not the policy's.
    timed = replay(jobs, devices, policy, lambda job: 0.0, clock=time.thread_time)
    decisions = sorted(timed.decisions)
    marks = {len(jobs) * quarter // 4 for quarter in range(1, 5)}
    held = []

    def weigh(done: int) -> None:
        if done in marks:
            snapshot = tracemalloc.take_snapshot().filter_traces(_POLICY)
            held.append(sum(one.size for one in snapshot.statistics("filename")))

    tracemalloc.start()
    try:
        replay(jobs, devices, Ours(devices, _CAPACITY, Rules()), lambda job: 0.0, weigh)
    finally:
        tracemalloc.stop()
    return Replayed(
        len(jobs),
        len(decisions),
        quantile(decisions, 0.5),
        quantile(decisions, 0.99),
        decisions[-1],
        tuple(held),
        policy.broken,
    )


def _jobs(count: int, way: str) -> list[TraceJob]:
    draw = random.Random(1)
    span = 900.0 if way == "burst" else count * _MEAN * 0.5 / (NODES * EACH)
    submits = sorted(draw.uniform(0, span) for _ in range(count))
    return [
        TraceJob(
            number,
            submit,
            1 + draw.lognormvariate(math.log(_MEDIAN), _SPREAD),
            draw_share(draw),
            0.5,
            draw.choice(("high", "normal", "low")),
        )
        for number, submit in enumerate(submits)
    ]
