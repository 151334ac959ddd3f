"""A guaranteed training beside an opportunistic one on the same processors.

What the guaranteed one loses, and what the opportunistic one still gets: while the first one
trains without a break, waits for its input half of the time, or only holds its memory; and beside
a neighbour that streams through memory, which no scheduler can take back.
"""

import contextlib
import os
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import sublet
from bench import figures, processes
from bench.report import Bar, Result, Table
from bench.sandbox import PROGRAMS, Sandbox, sandbox
from sublet.domain.job import Service

_PROGRAM = PROGRAMS / "steady.py"
_SETTLE = 0.3
"""Seconds after a change that are not measured."""
_OTHERS = 0.05
"""Processors that others may use, or the machine's host keep, in a round that counts."""
ALONE, EQUAL, GUEST, NEIGHBOUR = "alone", "beside equal", "beside guest", "neighbour alone"


@dataclass(frozen=True)
class Case:
    """What the two trainings do; see `steady`."""

    title: str
    first: str
    neighbour: str = "busy"


BUSY, INPUT, STREAM, IDLE = "busy", "input", "stream", "idle"
CASES = {
    BUSY: Case("trains without a break", "busy"),
    INPUT: Case("waits for input", "input"),
    STREAM: Case("beside a memory-bound one", "busy", "stream"),
    IDLE: Case("only holds memory", "idle"),
}

Pairs = Sequence[tuple[float, float]]
Rates = Mapping[str, Mapping[str, Pairs]]
"""Steps a second of the guaranteed program and of its neighbour in each round, by case, by who
runs."""


def measure(quick: bool) -> Result:
    """Who runs changes every second or so: what drifts in the machine cancels in each round."""
    rounds, window = (2, 0.5) if quick else (24, 0.8)
    rates: dict[str, dict[str, list[tuple[float, float]]]] = {}
    again: dict[str, int] = {}
    with sandbox() as home, home.entered():
        home.warm_up()
        for name, case in CASES.items():
            with (
                _trainer(home, case.first, "guaranteed") as first,
                _trainer(home, case.neighbour, "guaranteed") as equal,
                _trainer(home, case.neighbour, "opportunistic") as guest,
            ):
                rates[name], again[name] = _rounds(first, equal, guest, rounds, window)
    return result(rates, again)


def _rounds(
    first: "_Trainer", equal: "_Trainer", guest: "_Trainer", rounds: int, window: float
) -> tuple[dict[str, list[tuple[float, float]]], int]:
    """The rates by scene, and how many rounds were measured again since others came in between.

    As many at most as there are rounds: a machine that is never quiet is measured as it is.
    """
    scenes: list[tuple[str, list[_Trainer], _Trainer]] = [
        (ALONE, [first], guest),
        (GUEST, [first, guest], guest),
        (EQUAL, [first, equal], equal),
        (NEIGHBOUR, [equal], equal),
    ]
    paces: dict[str, list[tuple[float, float]]] = {name: [] for name, _, _ in scenes}
    again = 0
    for number in range(rounds):
        turn = number % len(scenes)
        while True:
            found = {}
            others = 0.0
            for name, running, neighbour in scenes[turn:] + scenes[:turn]:
                for one in (first, equal, guest):
                    one.let_run(one in running)
                time.sleep(_SETTLE)
                steps, foreign = _watch([first, equal, guest], window)
                found[name] = (steps[first], steps[neighbour])
                others = max(others, foreign)
            if others <= _OTHERS or again == rounds:
                break
            again += 1
        for name, pair in found.items():
            paces[name].append(pair)
    return paces, again


def _watch(trainers: list["_Trainer"], window: float) -> tuple[dict["_Trainer", float], float]:
    """Steps a second of each, and the processors that others used meanwhile."""
    began, busy = time.monotonic(), _busy() - sum(one.worked() for one in trainers)
    before = [one.steps() for one in trainers]
    time.sleep(window)
    after, took = [one.steps() for one in trainers], time.monotonic() - began
    busy = _busy() - sum(one.worked() for one in trainers) - busy
    rates = ((b - a) / took for a, b in zip(before, after, strict=True))
    return dict(zip(trainers, rates, strict=True)), busy / took


def _busy() -> float:
    """Seconds for which the processors had work, or were kept by the machine's host."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, soft, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def result(rates: Rates, again: Mapping[str, int]) -> Result:
    """The table and the bars for these rounds."""
    rows, bars = [], []
    for name, by in rates.items():
        title = CASES[name].title
        keeps = beside_equal = "–"
        if name != IDLE:
            alone = [mine for mine, _ in by[ALONE]]
            low, ratio, high = figures.paired_interval([mine for mine, _ in by[GUEST]], alone)
            equal = figures.paired_ratio([mine for mine, _ in by[EQUAL]], alone)
            keeps, beside_equal = (f"{value * 100:.1f} %" for value in (ratio, equal))
            ends = ((1 - high) * 100, (1 - low) * 100)
            cost = (1 - ratio) * 100
            bars.append(Bar(f"guaranteed loses, {title}", cost, 5, "at most", "%", ends))
        full = [theirs for _, theirs in by[NEIGHBOUR]]
        gets = figures.paired_ratio([theirs for _, theirs in by[GUEST]], full)
        rows.append((title, str(len(full)), beside_equal, keeps, f"{gets * 100:.1f} %"))
        if name == IDLE:
            bar = "opportunistic one gets of an idle machine"
            bars.append(Bar(bar, gets * 100, 90, "at least", "%"))
    table = Table(
        "speed of two trainings, each as a share of its own speed alone",
        ("guaranteed one", "rounds", "beside equal", "guaranteed", "opportunistic"),
        tuple(rows),
        (
            "Medians of the ratios within each round; alone: the others are paused, and"
            " the neighbour is of the ordinary class.",
            "beside equal: what the guaranteed one keeps beside a neighbour of its own class.",
            f"{sum(again.values())} rounds were measured again: others used the machine.",
        ),
    )
    samples = {
        **{name: {scene: list(pairs) for scene, pairs in by.items()} for name, by in rates.items()},
        "again": dict(again),
    }
    return Result("classes", (table,), tuple(bars), samples)


class _Trainer:
    """A leased program that counts its steps."""

    def __init__(self, job: sublet.Job, counter: Path) -> None:
        self._job = job
        self._counter = counter
        self._runs = True
        processes.wait_for(lambda: job.status().pid is not None, "a worker")
        self._pid = job.status().pid or 0
        processes.wait_for(counter.exists, "a board")
        processes.wait_for(lambda: self.steps() >= 1, "the first step")

    def steps(self) -> int:
        """How many steps the program has made until now."""
        count: int = struct.unpack("q", self._counter.read_bytes().ljust(8, b"\0"))[0]
        return count

    def worked(self) -> float:
        """Seconds that it kept a processor busy."""
        return processes.cpu_seconds(self._pid)

    def let_run(self, on: bool) -> None:
        """Pause it or let it go on."""
        if on != self._runs:
            self._runs = on
            (self._job.resume if on else self._job.pause)()


@contextlib.contextmanager
def _trainer(home: Sandbox, kind: str, service: Service) -> Iterator[_Trainer]:
    counter = home.directory / f"steps-{kind}-{service}-{time.monotonic_ns()}"
    job = sublet.submit(
        [str(_PROGRAM), str(counter), kind],
        memory="512MiB",
        service=service,
        python=sys.executable,
    )
    try:
        trainer = _Trainer(job, counter)
        trainer.let_run(False)
        yield trainer
    finally:
        job.cancel()
        job.wait(60)
