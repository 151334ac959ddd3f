"""Models trained as one: whether they equal what each becomes alone, how much faster that is, what
one more model costs, and whether the probe chooses the faster way."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bench import figures, processes
from bench.report import Bar, Result, Table
from bench.sandbox import PROGRAMS

_PATIENCE = 900
_EQUAL = ("MLP", "CNN", "LSTM", "LayerNorm")
_BY_OUTPUTS = ("BatchNorm", "attention")
_SAME = 1e-4
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
_GRID = ((16, 16), (32, 64), (64, 64), (128, 32), (256, 64), (256, 256), (512, 128), (1024, 256))
"""Width of the layers and rows of a batch."""
_TOGETHER = 8


def measure(quick: bool) -> Result:
    """Each figure in a process of its own."""
    kinds = ("MLP",) if quick else (*_EQUAL, *_BY_OUTPUTS)
    equal = {
        (kind, optimizer): tuple(_run("equal", kind, optimizer))
        for kind in kinds
        for optimizer in ("sgd", "adam")
    }
    speeds = {}
    for kind, count in (("MLP", 32), ("CNN", 8)):
        alone, together = _run("speed", kind, str(count), str(2 if quick else count))
        speeds[kind, count] = (alone * count, together)
    costs = {count: _run("cost", str(count)) for count in ((1, 8) if quick else _COUNTS)}
    shapes = _GRID[2:3] if quick else _GRID
    grid = {shape: tuple(_run("grid", *map(str, shape), str(_TOGETHER))) for shape in shapes}
    return result(equal, speeds, costs, grid)


def result(
    equal: Mapping[tuple[str, str], Sequence[float]],
    speeds: Mapping[tuple[str, int], tuple[float, float]],
    costs: Mapping[int, float],
    grid: Any,
) -> Result:
    """The tables and the bars."""
    differences = Table(
        "largest difference to `fit` after 5 epochs, float32",
        ("model", "optimizer", "weights", "outputs"),
        tuple((k, o, f"{one[0]:.1e}", f"{one[1]:.1e}") for (k, o), one in equal.items()),
        (
            "A bias before BatchNormalization and the key bias of attention have a true gradient "
            "of zero: Adam makes steps of its rounding, and outputs do not see them.",
        ),
    )
    faster = Table(
        "training all models, building and tracing included",
        ("models", "fit one by one", "as one", "faster"),
        tuple(
            (f"{n} {k}", figures.seconds(a), figures.seconds(b), figures.times(a / b))
            for (k, n), (a, b) in speeds.items()
        ),
    )
    cost = Table(
        "an epoch of one small MLP in a stack",
        ("models", "seconds"),
        tuple((str(count), figures.seconds(one)) for count, one in costs.items()),
    )
    choices = Table(
        f"50 epochs of {_TOGETHER} MLPs in both ways, tracing included, and what the probe chose",
        ("width, batch", "fused", "serial", "chosen", "of the best"),
        tuple(
            (
                f"{width}, {batch}",
                figures.seconds(ways["fused"]),
                figures.seconds(ways["serial"]),
                choice,
                figures.times(ways[choice] / min(ways.values())),
            )
            for (width, batch), (choice, ways) in grid.items()
        ),
    )
    bars = [
        Bar(f"{kind} with {optimizer} differs by", one[0], _SAME, "at most", "")
        for (kind, optimizer), one in equal.items()
        if kind in _EQUAL
    ]
    bars += [
        Bar(f"outputs of {kind} with {optimizer} differ by", one[1], _SAME, "at most", "")
        for (kind, optimizer), one in equal.items()
        if kind in _BY_OUTPUTS
    ]
    limits = {"MLP": 10, "CNN": 3}
    bars += [
        Bar(f"{count} {kind}s as one, over fit", alone / together, limits[kind], "at least")
        for (kind, count), (alone, together) in speeds.items()
    ]
    worst = max(ways[choice] / min(ways.values()) for choice, ways in grid.values())
    bars.append(Bar("the probe's choice, of the best way", worst, 1.1, "at most"))
    samples = {
        "equal": {f"{k} {o}": list(one) for (k, o), one in equal.items()},
        "speed": {f"{n} {k}": list(one) for (k, n), one in speeds.items()},
        "cost": {str(count): one for count, one in costs.items()},
        "grid": {f"{w} {b}": list(one) for (w, b), one in grid.items()},
    }
    return Result("stacks", (differences, faster, cost, choices), tuple(bars), samples)


def _run(*words: str) -> Any:
    ran = subprocess.run(
        [sys.executable, PROGRAMS / "stack_trainings.py", *words],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    if ran.returncode:
        raise processes.Failed(f"{' '.join(words)} did not end well: {ran.stderr[-2000:]}")
    return json.loads(ran.stdout.splitlines()[-1])
