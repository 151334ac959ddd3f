"""What enforcement costs a training step: the same program with and without a lease.

    bench ──"mlp 30"──▶ plain ──▶ answer ──"mlp 30"──▶ leased ──▶ answer ── …

All modes live at the same time and work in turns of a few milliseconds, never two at once. So the
blocks that are compared saw the same machine, however its speed drifts and whatever else runs.
"""

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from bench import figures, processes
from bench.report import Bar, Result, Table
from bench.sandbox import PROGRAMS, SUBLET, Sandbox, sandbox

_PROGRAM = PROGRAMS / "train_steps.py"
_CEILING = 1024
_POOL = {
    "TF_CPU_ALLOCATOR_USE_BFC": "1",
    "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(_CEILING),
}
PLAIN, POOL, SLEEP, LEASE = "plain", "pool", "sleep", "lease"
_MODES = (PLAIN, POOL, SLEEP, LEASE)
_BLOCKS = {"cnn": 10, "mlp": 30}
"""Steps of a turn: some 50 to 100 ms."""
_SETTLE = 0.01
"""Seconds between turns: idle threads of a program that lets them spin have stopped by then."""
_LIMIT = 5.0

Blocks = Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]
"""For each turn, the seconds of a step on the clock and on processors: by mode, by model."""


def measure(quick: bool) -> Result:
    """Turn after turn, each round in another order."""
    rounds = 6 if quick else 120
    blocks: dict[str, dict[str, list[tuple[float, float]]]] = {
        mode: {model: [] for model in _BLOCKS} for mode in _MODES
    }
    with sandbox() as home, contextlib.ExitStack() as stack:
        home.warm_up()
        runners = {mode: stack.enter_context(_runner(home, mode)) for mode in _MODES}
        for number in range(rounds):
            for model, steps in _BLOCKS.items():
                for mode in order(number):
                    blocks[mode][model].append(runners[mode](model, steps))
                    time.sleep(_SETTLE)
    return result(blocks)


def order(number: int) -> list[str]:
    """The modes' turns in a round: each mode comes first and last, and before and after each."""
    turn = number % len(_MODES)
    turned = [*_MODES[turn:], *_MODES[:turn]]
    return turned if number // len(_MODES) % 2 == 0 else turned[::-1]


def result(blocks: Blocks) -> Result:
    """The table and the bars for these turns."""
    rows, bars = [], []
    for model in _BLOCKS:
        for mode, by in blocks.items():
            costs = [_interval(blocks, model, mode, PLAIN, i) for i in (0, 1)]
            rows.append(
                (
                    f"{model.upper()}, {mode}",
                    figures.seconds(figures.median([clock for clock, _ in by[model]])),
                    *("" if mode == PLAIN else _cost(cost) for cost in costs),
                )
            )
        for base, clock, name in ((PLAIN, 0, "plain"), (SLEEP, 1, "sleep, on processors")):
            low, middle, high = _interval(blocks, model, LEASE, base, clock)
            name = f"{model.upper()}: lease / {name}"
            bars.append(Bar(name, middle, _LIMIT, "at most", "%", (low, high)))
    table = Table(
        "training step, all modes in turns",
        ("program", "step", "cost, clock", "cost, processors"),
        tuple(rows),
        (
            "cost: the median of the ratios to the plain block of the same round, with its 95 %"
            f" interval (bootstrap), over {len(blocks[PLAIN]['mlp'])} rounds.",
            f"pool: {' '.join(_POOL)} set by hand, without Sublet: what TensorFlow's own allocator"
            " costs.",
            "sleep: disable_thread_spinning set by hand, as a lease sets it for its neighbours.",
            "lease / sleep: threads behave alike, so this is what the pool and Sublet cost.",
        ),
    )
    return Result("step", (table,), tuple(bars), {mode: dict(by) for mode, by in blocks.items()})


def _interval(
    blocks: Blocks, model: str, mode: str, base: str, clock: int
) -> tuple[float, float, float]:
    """Per cent that a mode costs more than another, between the ends of the interval."""
    mine, other = ([one[clock] for one in blocks[name][model]] for name in (mode, base))
    low, middle, high = figures.paired_interval(mine, other)
    return 100 * (low - 1), 100 * (middle - 1), 100 * (high - 1)


def _cost(interval: tuple[float, float, float]) -> str:
    low, middle, high = (figures.percent(cost / 100) for cost in interval)
    return f"{middle} ({low[:-2]} to {high[:-2]})"


@contextlib.contextmanager
def _runner(home: Sandbox, mode: str) -> Iterator[Callable[[str, int], tuple[float, float]]]:
    """Start a mode's program; gives a function that has it run a block."""
    place = home.directory / mode
    place.mkdir()
    asks, answers = place / "asks", place / "answers"
    for path in (asks, answers):
        os.mkfifo(path)
    words: list[str | Path] = [sys.executable]
    if mode == LEASE:
        words = [SUBLET, "run", "--memory", f"{_CEILING}MiB"]
    words += [_PROGRAM, asks, answers, *(["sleepy"] if mode == SLEEP else [])]
    env = {**home.env, **(_POOL if mode == POOL else {})}
    log = place / "log"
    # Open for both directions, so that neither end has to wait for the other to open.
    with open(asks, "r+b", buffering=0) as turns, open(answers, "r+b", buffering=0) as replies:
        # Linux shares processors out by session first, and a leased program is in another one
        # than its client: on a busy machine the modes would not be treated alike.
        child = processes.start(words, env, log, session=True)

        def hear(timeout: float) -> bytes:
            heard = b""
            deadline = time.monotonic() + timeout
            while not heard.endswith(b"\n"):
                if select.select([replies], [], [], 0.5)[0]:
                    heard += os.read(replies.fileno(), 4096)
                elif child.poll() is not None or time.monotonic() > deadline:
                    raise processes.Failed(f"{mode}: no answer: {processes.tail(log)}")
            return heard

        def block(model: str, steps: int) -> tuple[float, float]:
            turns.write(f"{model} {steps}\n".encode())
            clock, processors = map(float, hear(60).split())
            return clock, processors

        hear(120)
        yield block
