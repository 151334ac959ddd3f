"""What enforcement costs a training step: the same program with and without a lease."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench import figures, processes
from bench.household import PROGRAMS, Household, household
from bench.report import Bar, Result, Table

_PROGRAM = PROGRAMS / "train_steps.py"
_CEILING = 1024
_POOL_ONLY = {
    "TF_CPU_ALLOCATOR_USE_BFC": "1",
    "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(_CEILING),
}
PLAIN, POOL, LEASE = "plain", "TensorFlow's pool only", "lease"
_MODELS = ("cnn", "mlp")

Steps = Mapping[str, Mapping[str, Sequence[float]]]
"""Median seconds of a step in each round: by mode, by model."""


def measure(quick: bool) -> Result:
    """The modes in turn, round after round, each round beginning with another one."""
    rounds, steps = (2, 40) if quick else (9, 300)
    medians: dict[str, dict[str, list[float]]] = {
        mode: {model: [] for model in _MODELS} for mode in (PLAIN, POOL, LEASE)
    }
    with household() as home:
        home.warm_up()
        report = home.directory / "report"
        modes: list[tuple[str, Callable[[Path], None]]] = [
            (PLAIN, lambda report: _python(home, {}, report, steps)),
            (POOL, lambda report: _python(home, _POOL_ONLY, report, steps)),
            (LEASE, lambda report: _leased(home, report, steps)),
        ]
        for number in range(rounds):
            turn = number % len(modes)
            for mode, run in modes[turn:] + modes[:turn]:
                run(report)
                told = json.loads(report.read_text())
                report.unlink()
                for model in _MODELS:
                    medians[mode][model].append(figures.median(told[model]))
    return result(medians)


def result(medians: Steps) -> Result:
    """The table and the bars for these rounds."""
    rows, bars = [], []
    for model in _MODELS:
        base = medians[PLAIN][model]
        for mode, by in medians.items():
            values = by[model]
            ratio = figures.paired_ratio(values, base)
            rows.append(
                (
                    f"{model.upper()}, {mode}",
                    str(len(values)),
                    figures.seconds(figures.median(values)),
                    f"±{figures.spread(values) * 100:.0f} %",
                    figures.percent(ratio - 1),
                )
            )
            if mode == LEASE:
                cost = (ratio - 1) * 100
                bars.append(Bar(f"{model.upper()}: a step under a lease", cost, 5, "at most", "%"))
    table = Table(
        "training step, median of each run, and of the rounds",
        ("program", "rounds", "step", "spread", "cost"),
        tuple(rows),
        (
            "cost: the median of the ratios to the plain run of the same round.",
            f"pool only: {' '.join(_POOL_ONLY)} set by hand, without Sublet: what TensorFlow's own"
            " allocator costs.",
        ),
    )
    return Result("step", (table,), tuple(bars), {mode: dict(by) for mode, by in medians.items()})


def _python(home: Household, extra: Mapping[str, str], report: Path, steps: int) -> None:
    words: list[str | Path] = [sys.executable, _PROGRAM, report, str(steps)]
    processes.run(words, {**home.env, **extra}, home.log, timeout=300)


def _leased(home: Household, report: Path, steps: int) -> None:
    home.sublet("run", "--memory", f"{_CEILING}MiB", _PROGRAM, report, str(steps), timeout=300)
