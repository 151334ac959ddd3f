"""Models in parts: one that does not fit a GPU's lease on two, and how busy a pipeline keeps its
devices.

The GPUs are stand-ins: their memory counts, and their time does not. So the pipeline is measured on
two logical CPUs with one thread each: TensorFlow's profiler says when they compute matrix products,
which are nearly all of the work. That is the pipeline's doing, and means something on a busy
machine, too.
"""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench import processes, trainings
from bench.report import Bar, Result, Table
from bench.sandbox import PROGRAMS, ROOT, Sandbox, sandbox

_MiB, _GiB = 2**20, 2**30
_SIZE = 96
"""MiB of weights."""
_SHARE = 0.6
"""The lease on each card, as a share of them."""
_PARTS = 2
_SAME = 1e-5
_OF_IDEAL = 0.8
_PATIENCE = 600


@dataclass(frozen=True)
class Two:
    """What came of the model that does not fit one card."""

    weights: int
    lease: int
    died: bool
    """Whether it does not live on one card with this lease."""
    peaks: tuple[int, ...]
    difference: float
    """The largest of any weight, from a training on the CPU with room for all."""


@dataclass(frozen=True)
class Pipelined:
    """Steps with so many micro-batches."""

    micro_batches: int
    seconds: float
    """Of all steps."""
    busy: float
    """In which devices computed, both together."""

    @property
    def used(self) -> float:
        """The share of the time in which a device computes, on average."""
        return self.busy / (_PARTS * self.seconds)

    @property
    def ideal(self) -> float:
        """The same, if micro-batches took the same everywhere and nothing else took time."""
        return self.micro_batches / (self.micro_batches + _PARTS - 1)


def measure(quick: bool) -> Result:
    """The cards, then the pipeline."""
    two = _on_two_cards()
    counts, steps = ((4,), 5) if quick else ((1, 2, 4, 8), 30)
    return result(two, [_pipelined(count, steps) for count in counts])


def result(two: Two, pipelines: Sequence[Pipelined]) -> Result:
    """The tables and the bars."""
    cards = Table(
        "a model that does not fit one card's lease, on two stand-in cards, MiB",
        ("weights", "lease", "dies on one", "peaks on two", "weights differ"),
        (
            (
                f"{two.weights / _MiB:.0f}",
                f"{two.lease / _MiB:.0f}",
                "yes" if two.died else "no",
                ", ".join(f"{peak / _MiB:.0f}" for peak in two.peaks),
                f"{two.difference:.1e}",
            ),
        ),
    )
    steps = Table(
        "how busy a pipeline of two parts keeps two logical CPUs of one thread each",
        ("micro-batches", "busy", "ideal", "of the ideal"),
        tuple(
            (
                str(one.micro_batches),
                f"{one.used:.0%}",
                f"{one.ideal:.0%}",
                f"{one.used / one.ideal:.0%}",
            )
            for one in pipelines
        ),
        (
            "ideal: of a pipeline that fills and drains once in a step. Two operations of one "
            "part can run side by side, too, which may give more",
        ),
    )
    four = next(one for one in pipelines if one.micro_batches == 4)
    bars = (
        Bar("models that live on one card", float(not two.died), 0, "at most", "runs"),
        Bar("the fullest card, of its lease", max(two.peaks) / two.lease, 1, "at most"),
        Bar("weights differ by", two.difference, _SAME, "at most", ""),
        Bar("busy, of the ideal, 4 micro-batches", four.used / four.ideal, _OF_IDEAL, "at least"),
    )
    samples = {"two": asdict(two), "pipelines": [asdict(one) for one in pipelines]}
    return Result("parts", (cards, steps), bars, samples)


def _on_two_cards() -> Two:
    sys.path.append(str(ROOT / "tests"))
    standin: Any = importlib.import_module("standin")
    with sandbox() as home:
        cards = [standin.Gpu(uuid=f"GPU-{name}", total=8 * _GiB, compute=(7, 5)) for name in "ab"]
        machine = standin.Machine(home.directory / "machine", *cards)
        home.env.update(machine.environ)
        lease = int(_SIZE * _SHARE)
        _run(home, "whole", "cpu", "--device", "cpu", "--memory", "3GiB")
        dead, _ = _run(home, "whole", "one", "--memory", f"{lease}MiB")
        ended, said = _run(home, "parts", "two", "--gpus", "2", "--memory", f"{lease}MiB")
        if ended["code"]:
            raise processes.Failed(f"the model in parts did not end well: {said[-2000:]}")
        if wrong := machine.log("cannot compute|gave up"):
            raise processes.Failed(f"the stand-in did not compute all: {wrong[:3]}")
        peaks = json.loads((home.directory / "two.json").read_text())
        died = dead["cause"] == "lease exceeded"
        differ = trainings.difference(home.directory / "cpu.npz", home.directory / "two.npz")
    return Two(_SIZE * _MiB, lease * _MiB, died, tuple(peaks), differ)


def _run(home: Sandbox, way: str, record: str, *options: str) -> tuple[Any, str]:
    """The report of one run, and what it said."""
    words = (way, str(_SIZE), str(home.directory / record))
    return trainings.run(home, options, PROGRAMS / "train_parts.py", *words)


def _pipelined(micro_batches: int, steps: int) -> Pipelined:
    ran = subprocess.run(
        [sys.executable, PROGRAMS / "pipeline_steps.py", str(micro_batches), str(steps)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    if ran.returncode:
        raise processes.Failed(f"the pipeline did not run: {ran.stderr[-2000:]}")
    seconds, busy, _ = json.loads(ran.stdout)
    return Pipelined(micro_batches, seconds, busy)
