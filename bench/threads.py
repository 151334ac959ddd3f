"""When threads of one process beat processes, and when they cannot: the same calls in both.

    bench ──"small training,threads,4"──▶ side_by_side (preloaded) ──fork──▶ the calls

Both start warm, from forks of one preloaded process, so neither pays for an import.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence

from bench import figures, processes
from bench.report import Bar, Result, Table
from bench.sandbox import PROGRAMS, ROOT, sandbox

_PROGRAM = PROGRAMS / "side_by_side.py"
_MiB = 2**20
KINDS = ("small training", "large training", "inference")
IN_TURN, THREADS, PROCESSES = "in turn", "threads", "processes"
WAYS = (IN_TURN, THREADS, PROCESSES)
_COUNTS = (2, 4, 8)
_ROUNDS = 3

Runs = Mapping[tuple[str, int], Mapping[str, Sequence[tuple[float, float, int]]]]
"""Seconds on the clock, seconds on processors and bytes of each round: by kind and number of calls,
by way."""


def measure(quick: bool) -> Result:
    """Round after round, the ways in turn: what drifts falls on all of them."""
    counts, rounds = ((2,), 1) if quick else (_COUNTS, _ROUNDS)
    runs: dict[tuple[str, int], dict[str, list[tuple[float, float, int]]]] = {
        (kind, count): {way: [] for way in WAYS} for kind in KINDS for count in counts
    }
    with sandbox() as home, home.log.open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, _PROGRAM],
            env={**home.env, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        with child:
            for number in range(rounds):
                for (kind, count), by in runs.items():
                    for way in WAYS if number % 2 else reversed(WAYS):
                        print(f"{kind},{way},{count}", file=child.stdin, flush=True)
                        answer = child.stdout.readline()
                        if not answer:
                            raise processes.Failed(f"{kind}, {way}: {processes.tail(home.log)}")
                        clock, processors, held = json.loads(answer)
                        by[way].append((clock, processors, held))
    return result(runs)


def result(runs: Runs) -> Result:
    """The table and the bars for these runs."""
    rows = []
    for (kind, count), by in runs.items():
        clock, processors, held = ({way: _of(by[way], place) for way in WAYS} for place in range(3))
        rows.append(
            (
                f"{kind}, {count}",
                *(figures.seconds(figures.median(clock[way])) for way in WAYS),
                figures.times(figures.paired_ratio(clock[THREADS], clock[PROCESSES])),
                figures.times(figures.paired_ratio(processors[THREADS], processors[PROCESSES])),
                *(f"{figures.median(held[way]) / _MiB:.0f}" for way in (THREADS, PROCESSES)),
            )
        )
    table = Table(
        "calls side by side: seconds until all are done, MiB (PSS) that they hold then",
        ("calls", *WAYS, "clock", "cpu", "thr", "proc"),
        tuple(rows),
        (
            "in turn and threads: one process with one runtime. processes: one for each call. All"
            " are forks of one process that has TensorFlow imported.",
            "clock, cpu: threads / processes, seconds on the clock and on processors; medians of"
            " the ratios round by round. thr, proc: MiB in threads and in processes.",
        ),
    )
    most = max(count for _, count in runs)
    bars = []
    for kind in KINDS:
        threads, apart = (
            figures.median(_of(runs[kind, most][way], 2)) for way in (THREADS, PROCESSES)
        )
        bars.append(Bar(f"{most} x {kind}: memory of processes", threads / apart, 0.5, "at most"))
    samples = {f"{kind}, {count}": dict(by) for (kind, count), by in runs.items()}
    return Result("threads", (table,), tuple(bars), samples)


def _of(rounds: Sequence[tuple[float, float, int]], place: int) -> list[float]:
    return [one[place] for one in rounds]
