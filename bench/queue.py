"""Ten thousand jobs in the queue: what it costs to add one, to plan, to look, and to start again.

One job holds the device, so that all others wait. They come one by one through `sublet.submit()`,
each over a connection of its own, as from ten thousand shells.
"""

import gc
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sublet
from bench import figures, processes
from bench.report import Bar, Result, Table
from bench.sandbox import SUBLET, Sandbox, sandbox
from sublet.backends.local.backend import LocalBackend
from sublet.broker.__main__ import collect_rarely
from sublet.broker.broker import Broker
from sublet.broker.ledger import Ledger
from sublet.clock import SystemClock
from sublet.devices import Probe
from sublet.domain.job import Outcome
from sublet.home import Home
from sublet.reactor import Reactor
from sublet.units import GiB, MiB

_MB = 1e6
_CAPACITY = 2 * GiB
_HOLDER = "1200MiB"
_WAITING = "800MiB"
"""Less than the device has, more than the holder leaves."""


@dataclass(frozen=True)
class Figures:
    """All that was measured, in seconds and bytes."""

    count: int
    submits: Sequence[float]
    memory: dict[int, int]
    """What the broker holds (RSS) with so many in the queue."""
    looks: Sequence[float]
    first_plan: float
    plans: Sequence[float]
    """With one job changed since the last one."""
    whole_plans: Sequence[float]
    """With every job to be looked at again."""
    lessons: Sequence[float]
    """While all sizes are worked out again, for their program has just been measured."""
    starts: dict[int, float]
    """From no broker to its first answer, with so many in the ledger."""


def measure(quick: bool) -> Result:
    """Fill the queue, look at it, and start again."""
    count = 1000 if quick else 10_000
    with sandbox() as home:
        home.env["SUBLET_CPU_MEMORY"] = f"{_CAPACITY}B"
        with home.entered():
            starts = {0: _start(home)}
            sublet.submit(["sleep", "100000"], memory=_HOLDER)
            pid = home.status()["pid"]
            memory = {0: processes.rss(pid)}
            submits = []
            for number in range(1, count + 1):
                began = time.perf_counter()
                sublet.submit(["true", str(number)], memory=_WAITING)
                submits.append(time.perf_counter() - began)
                if number in (count // 10, count):
                    memory[number] = processes.rss(pid)
            looks = [_look(home) for _ in range(5 if quick else 21)]
            home.sublet("down")
            plans = _plans(home, 20 if quick else 200)
            starts[count] = _start(home)
    return result(Figures(count, submits, memory, looks, *plans, starts))


def result(measured: Figures) -> Result:
    """The tables and the bars for these figures."""
    late = sorted(measured.submits[-max(1, measured.count // 10) :])
    spans = {
        "submit, all": measured.submits,
        f"submit, beyond {measured.count - len(late)} in the queue": late,
        "sublet ps": measured.looks,
        "plan, one job changed": measured.plans,
        "plan, every job looked at again": measured.whole_plans,
        "plan, the program was measured": measured.lessons,
        "first plan of a broker": [measured.first_plan],
    }
    times = Table(
        f"with {measured.count} jobs in the queue",
        ("what", "times", "p50", "p99", "most"),
        tuple(
            (
                what,
                str(len(values)),
                *(figures.seconds(_quantile(values, q)) for q in (0.5, 0.99, 1.0)),
            )
            for what, values in spans.items()
        ),
    )
    counts = sorted(measured.memory)
    memory = Table(
        "the broker's memory",
        ("in the queue", "RSS MB", "KB for each job"),
        tuple(
            (
                str(count),
                f"{measured.memory[count] / _MB:.1f}",
                f"{(measured.memory[count] - measured.memory[0]) / count / 1e3:.1f}"
                if count
                else "",
            )
            for count in counts
        ),
    )
    starts = Table(
        "from no broker to its first answer",
        ("in the ledger", "wall"),
        tuple((str(count), figures.seconds(span)) for count, span in measured.starts.items()),
    )
    bars = (
        Bar("submit, p99", _quantile(measured.submits, 0.99) * 1000, 50, "at most", "ms"),
        Bar(
            "plan, one job changed, p99",
            _quantile(measured.plans, 0.99) * 1000,
            20,
            "at most",
            "ms",
        ),
        Bar(
            "plan, the program was measured, p99",
            _quantile(measured.lessons, 0.99) * 1000,
            20,
            "at most",
            "ms",
        ),
        Bar("sublet ps, median", figures.median(measured.looks) * 1000, 200, "at most", "ms"),
    )
    samples = {
        "submits, by percent": [_quantile(measured.submits, i / 100) for i in range(101)],
        "memory": {str(count): size for count, size in measured.memory.items()},
        "looks": list(measured.looks),
        "first_plan": measured.first_plan,
        "plans": list(measured.plans),
        "whole_plans": list(measured.whole_plans),
        "lessons": list(measured.lessons),
        "starts": {str(count): span for count, span in measured.starts.items()},
    }
    return Result("queue", (times, memory, starts), bars, samples)


def _look(home: Sandbox) -> float:
    began = time.perf_counter()
    subprocess.run([SUBLET, "ps"], env=home.env, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def _start(home: Sandbox) -> float:
    began = time.perf_counter()
    home.status()
    return time.perf_counter() - began


def _plans(home: Sandbox, count: int) -> tuple[float, list[float], list[float], list[float]]:
    """Plans by the broker's own code, in this process, on a copy of its ledger."""
    copy = Home(home.directory / "copy")
    copy.make()
    shutil.copyfile(Path(home.env["SUBLET_HOME"]) / copy.ledger.name, copy.ledger)
    ledger = Ledger.open(copy.ledger)
    reactor = Reactor()
    backend = LocalBackend(reactor, copy)
    broker = Broker(reactor, copy, ledger, Probe.open(_CAPACITY), SystemClock(), backend)
    before = gc.get_threshold()
    collect_rarely()
    try:
        first = _timed(broker)
        waiting = [job.id for job in broker.state.waiting()]
        one, whole = [], []
        for number in range(count):
            broker.queue.touch(waiting[number * 7919 % len(waiting)])
            one.append(_timed(broker))
        for _ in range(max(5, count // 10)):
            broker.work.touch_waiting()
            whole.append(_timed(broker))
        job = broker.state[waiting[0]]
        outcome = Outcome("exited", 0, peak=MiB, system_peak=8 * MiB)
        ledger.measurements.remember(job, "cpu", GiB, outcome, "cold", time.time())
        broker.queue.revise(broker.estimator.measured(job))
        lessons = []
        while broker.queue.behind:
            lessons.append(_timed(broker))
        return first, one, whole, lessons
    finally:
        broker.close()
        gc.set_threshold(*before)
        gc.unfreeze()


def _timed(broker: Broker) -> float:
    began = time.perf_counter()
    plan = broker.planner.plan()
    took = time.perf_counter() - began
    if plan.grants:
        raise processes.Failed("somebody could start: the holder does not hold the device")
    return took


def _quantile(values: Sequence[float], share: float) -> float:
    in_order = sorted(values)
    return in_order[min(len(in_order) - 1, int(share * len(in_order)))]
