"""Batches that do not fit, in micro-batches: the same weights, the time of it, and the peak.

An unmodified Keras program of four kinds, with two optimizers each: with room for its batches, in
a lease in which they kill it, and in the same lease with `--on-oom split`; then with the
micro-batch as its batch, for the time that it takes. Then in smaller and larger leases, for what it
holds there.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import figures, processes, trainings
from bench.report import Bar, Result, Table
from bench.sandbox import PROGRAMS, Sandbox, sandbox

_MiB = 2**20
BATCHES = {"mlp": 8192, "cnn": 128, "lstm": 512, "attention": 128}
_STEPS = 3
"""Of an epoch; the batch of the last one is short."""
_SHARE = 0.6
"""The lease, as a share of the peak with whole batches."""
_OTHERS = (0.55, 0.65, 0.7, 0.75, 0.8, 0.9)
"""More leases, for the peak alone: 56 runs in all."""
_SGD, _ADAM, _SLOWER = 1e-5, 1e-4, 1.1
_ROUNDED = 2.0
"""Two orders of the same sums may differ by twice what one pair of them did."""
_SAID = re.compile(r"training in \d+ micro-batches of (\d+)")


@dataclass(frozen=True)
class Split:
    """What came of one model with one optimizer."""

    model: str
    optimizer: str
    whole_peak: int
    lease: int
    peak: int
    died: bool
    """Whether whole batches kill it in this lease."""
    difference: float
    """The largest of any weight, from the training with whole batches."""
    rounding: float
    """The same for whole batches with their rows in another order."""
    rows: int
    """Of a micro-batch; 0 if batches were not split."""
    slower: float
    """Seconds of the last epochs, of those with the micro-batch as its batch."""
    others: tuple[tuple[int, int, int], ...] = ()
    """Of runs in other leases: the lease, the peak, and the exit code."""


def measure(quick: bool) -> Result:
    """All kinds, one after the other."""
    splits = []
    for model in list(BATCHES)[: 1 if quick else None]:
        for optimizer in ("sgd",) if quick else ("sgd", "adam"):
            with sandbox() as home:
                home.warm_up()
                splits.append(_split(home, model, optimizer, _OTHERS[:1] if quick else _OTHERS))
                print(f"  {splits[-1]}", flush=True)
    return result(splits)


def result(splits: Sequence[Split]) -> Result:
    """The table and the bars."""
    rows = tuple(
        (
            f"{one.model}, {one.optimizer}",
            *(f"{size / _MiB:.0f}" for size in (one.whole_peak, one.lease, one.peak)),
            "yes" if one.died else "no",
            f"{one.rows} of {BATCHES[one.model]}",
            f"{one.difference:.1e}",
            f"{one.rounding:.1e}",
            figures.significant(one.slower),
        )
        for one in splits
    )
    table = Table(
        "an unmodified Keras program with --on-oom split, MiB",
        ("model", "peak", "lease", "peak", "dies whole", "rows", "differ", "rounding", "time"),
        rows,
        (
            "differ: weights, from those of whole batches. rounding: of whole batches with their "
            "rows in another order, from the same; Adam makes much of a gradient near 0. time: of "
            "the last two epochs, of plain `fit` with the micro-batch as its batch",
        ),
    )
    runs = [(one.lease, one.peak, 0) for one in splits]
    runs += [run for one in splits for run in one.others]
    bars = [
        Bar(
            "trainings that whole batches do not kill",
            sum(not one.died for one in splits),
            0,
            "at most",
            "runs",
        ),
        Bar(
            f"of {len(runs)} runs, peaks above the lease",
            sum(peak > lease for lease, peak, _ in runs),
            0,
            "at most",
            "runs",
        ),
        Bar("runs that fail", sum(code != 0 for *_, code in runs), 0, "at most", "runs"),
        Bar(
            "time, of the same micro-batch",
            _middle([one.slower for one in splits]),
            _SLOWER,
            "at most",
        ),
    ]
    for optimizer, most in (("sgd", _SGD), ("adam", _ADAM)):
        found = [
            one.difference / max(most, one.rounding) for one in splits if one.optimizer == optimizer
        ]
        if found:
            what = f"weights differ, {optimizer}, of {most:.0e} or of rounding"
            bars.append(Bar(what, max(found), _ROUNDED, "at most"))
    return Result("split", (table,), tuple(bars), {"splits": [asdict(one) for one in splits]})


def _middle(numbers: Sequence[float]) -> float:
    return sorted(numbers)[len(numbers) // 2]


def _split(home: Sandbox, model: str, optimizer: str, others: Sequence[float]) -> Split:
    batch = str(BATCHES[model])
    whole, _ = _run(home, "whole", model, optimizer, batch, "--memory", "3GiB")
    lease = int(whole["peak"] * _SHARE) // _MiB
    small = ("--memory", f"{lease}MiB")
    _run(home, "turned", model, optimizer, batch, "--memory", "3GiB", turned=True)
    dead, _ = _run(home, "dead", model, optimizer, batch, *small)
    parts, said = _run(home, "parts", model, optimizer, batch, *small, "--on-oom", "split")
    if parts["code"]:
        raise processes.Failed(f"{model} with {optimizer} did not end well: {said[-2000:]}")
    found = _SAID.search(said)
    rows = int(found[1]) if found else 0
    _run(home, "plain", model, optimizer, str(rows or batch), "--memory", "3GiB")
    more = []
    for share in others:
        size = int(whole["peak"] * share) // _MiB
        options = ("--memory", f"{size}MiB", "--on-oom", "split")
        run, said = _run(home, "other", model, optimizer, batch, *options)
        more.append((size * _MiB, run["peak"], run["code"]))
        if run["code"]:
            print(f"{model} with {optimizer} in {size} MiB:\n{said[-2000:]}", flush=True)
    return Split(
        model,
        optimizer,
        whole["peak"],
        lease * _MiB,
        parts["peak"],
        dead["cause"] == "lease exceeded",
        trainings.difference(home.directory / "whole.npz", home.directory / "parts.npz"),
        trainings.difference(home.directory / "whole.npz", home.directory / "turned.npz"),
        rows,
        _seconds(home.directory / "parts.json") / _seconds(home.directory / "plain.json"),
        tuple(more),
    )


def _run(
    home: Sandbox,
    record: str,
    model: str,
    optimizer: str,
    batch: str,
    *options: str,
    turned: bool = False,
) -> tuple[Any, str]:
    """The report of one run, and what it said."""
    rows = BATCHES[model] * _STEPS - BATCHES[model] // 3
    words = (model, optimizer, str(rows), batch, str(home.directory / record))
    last = ["turned"] if turned else []
    return trainings.run(home, options, PROGRAMS / "train_whole.py", *words, *last)


def _seconds(record: Path) -> float:
    """Of the epochs after the first, which builds graphs."""
    return float(sum(json.loads(record.read_text())[1:]))
