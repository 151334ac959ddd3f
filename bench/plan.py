"""What a plan costs with many waiting jobs, and on many nodes: the policy without the broker."""

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence

from bench import figures, replayed
from bench.report import Bar, Result, Table
from sublet.domain.device import Device
from sublet.policy.admission import plan
from sublet.policy.capacity import Capacity, Holding
from sublet.policy.wait_queue import Candidate, Offer, Priority, WaitQueue
from sublet.policy.wait_reasons import Reasons
from sublet.units import GiB, MiB

SIZES = (1_000, 10_000, 100_000)
_CLASSES: tuple[Priority, ...] = ("high", "normal", "low")
_NOW = 1e6
_BETWEEN = 3600.0
"""After the patience of a job that has been first from the beginning, before its limit."""
_STEPS = {
    "build": "all jobs into an empty line",
    "plan": "a plan: a lease has ended on each device, and jobs fit",
    "nothing fits": "a plan: nobody fits anywhere",
    "mixed": "a plan: each job names its own devices, and sizes differ by device",
    "passing": "a plan: room is kept for the first until an end that is known, and all others "
    "would fit now but not beside it",
    "keep": "tell the line of all jobs again, nothing changed",
    "one reason": "why one job waits, and when it will start",
    "all reasons": "the same for every job",
}
Samples = Mapping[str, Mapping[int, Sequence[float]]]


def measure(quick: bool) -> Result:
    """Time each step several times and take medians."""
    samples: dict[str, dict[int, list[float]]] = {name: {} for name in _STEPS}
    for size in SIZES[: 2 if quick else 3]:
        for name, seconds in _steps(size, 2 if quick else 7).items():
            samples[name][size] = seconds
    return result(samples, replayed.measure(quick))


def result(samples: Samples, ways: Mapping[str, replayed.Replayed]) -> Result:
    """The tables and the bars for these samples."""
    sizes = list(next(iter(samples.values())))
    table = Table(
        "one plan, median",
        ("step", *(f"{size:,} jobs" for size in sizes)),
        tuple(
            (name, *(figures.seconds(figures.median(by[size])) for size in sizes))
            for name, by in samples.items()
        ),
        (
            "4 devices, 16 holders, three classes, a tenth of the jobs opportunistic.",
            *(f"{name}: {said}." for name, said in _STEPS.items()),
        ),
    )
    plans = ("plan", "nothing fits", "mixed", "passing")
    bars = [
        Bar(
            f"{name}, 10,000 jobs",
            figures.median(samples[name][10_000]) * 1000,
            20,
            "at most",
            "ms",
        )
        for name in plans
    ]
    if len(sizes) > 1:
        least, most = sizes[0], sizes[-1]
        # A tenth of a millisecond is noise: below it, growth says nothing.
        allowed = most * math.log(most) / (least * math.log(least))
        for name in plans:
            low, high = (max(1e-4, figures.median(samples[name][n])) for n in (least, most))
            title = f"{name}, {least:,} to {most:,} jobs"
            bars.append(Bar(title, high / low, round(allowed), "at most"))
    return Result(
        "plan",
        (table, replayed.table(ways)),
        (*bars, *replayed.bars(ways)),
        {**samples, "replay": {way: of._asdict() for way, of in ways.items()}},
    )


def _steps(size: int, times: int) -> dict[str, list[float]]:
    alike, mixed = _waiting(size, mixed=False), _waiting(size, mixed=True)
    line, other = WaitQueue(alike), WaitQueue(mixed)
    some, full, ending = _rooms(3 * GiB), _rooms(0), _rooms(8 * GiB, end=_BETWEEN + 60)
    passing = WaitQueue(_crowd(size))
    passing.led = {0: 0.0}
    asked = [alike[size // 2].job]
    return {
        "build": _timed(lambda: WaitQueue(alike), times),
        "plan": _timed(lambda: plan(some, line, _NOW), times),
        "nothing fits": _timed(lambda: plan(full, line, _NOW), times),
        "mixed": _timed(lambda: plan(some, other, _NOW), times),
        "passing": _timed(lambda: plan(ending[:1], passing, _BETWEEN), times),
        "keep": _timed(lambda: line.keep(alike), times),
        "one reason": _timed(lambda: Reasons(full, line, _NOW, asked).why(asked[0]), times),
        "all reasons": _timed(lambda: _explain(full, line, alike), times),
    }


def _explain(rooms: tuple[Capacity, ...], line: WaitQueue, waiting: Sequence[Candidate]) -> None:
    reasons = Reasons(rooms, line, _NOW, usual=600.0)
    for one in waiting:
        reasons.why(one.job)


def _timed(step: Callable[[], object], times: int) -> list[float]:
    step()
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        step()
        taken.append(time.perf_counter() - began)
    return taken


def _rooms(free: int, end: float | None = None) -> tuple[Capacity, ...]:
    rooms = []
    for number in range(4):
        name = f"gpu{number}"
        device = Device(name, "gpu", "", 16 * GiB, number, None, "the benchmark")
        each = (16 * GiB - free) // 4
        held = tuple(
            Holding(-1 - 4 * number - n, each, "train.py", since=_NOW - 600, end=end)
            for n in range(4)
        )
        rooms.append(Capacity(device, free, holdings=held))
    return tuple(rooms)


def _crowd(size: int) -> list[Candidate]:
    """A job that leaves 1 GiB of the device, and others that fit now and need more than that."""
    amounts = [15 * 1024, *(2048 + n % 6000 for n in range(size - 1))]
    return [
        Candidate(job, job, (Offer(("gpu0",), amount * MiB, amount * MiB),), 0.0)
        for job, amount in enumerate(amounts)
    ]


def _waiting(size: int, mixed: bool) -> list[Candidate]:
    # The first thousand of a hundred thousand are the same thousand.
    draw = random.Random(1)
    names = tuple(f"gpu{number}" for number in range(4))
    waiting = []
    for job in range(size):
        amounts = [draw.randrange(1024, 14 * 1024) * MiB for _ in names]
        if mixed:
            mine = draw.sample(range(4), draw.randint(1, 4))
            offers = tuple(Offer((names[n],), amounts[n], amounts[n]) for n in sorted(mine))
        else:
            offers = (Offer(names, amounts[0], amounts[0]),)
        service = "opportunistic" if job % 10 == 0 else "guaranteed"
        waiting.append(
            # Drawn from a tuple of the literals, which are plain text to the checker.
            Candidate(job, job, offers, float(job) / 100, draw.choice(_CLASSES), service)  # type: ignore[arg-type]
        )
    return waiting
