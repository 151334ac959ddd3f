"""`sublet.sweep` beside what people do today, its own choice of a way, and what each trial costs.

Every figure is a program of its own. Those of peers are whole programs, start-up included; ours is
started by `sublet run`, as the handbook says, and by `python` as well.
"""

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import figures
from bench.programs.sweeps import GRID
from bench.report import Bar, Result, Table
from bench.sandbox import PROGRAMS, ROOT, SUBLET, Sandbox, sandbox
from sublet import svg
from sublet.sweeps.plot import Axis

_PROGRAM = PROGRAMS / "sweeps.py"
_PICTURE = ROOT / "docs/images/sweep-cost.svg"
_PATIENCE = 400.0
_PEERS = {
    "fit": "fit one after another",
    "pool": "mp.Pool, 2 workers",
    "ray": "Ray tasks, 2 at a time",
    "tune": "Ray Tune, 2 at a time",
    "keras_tuner": "Keras Tuner",
    "optuna": "Optuna",
}
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
_WAYS = ("fused", "packed", "serial")
_ENOUGH = 1.4
"""Of the time that `auto` took: a way that takes longer is stopped, as it is not the best."""
_NEAR = 1.1
_ALIKE = ("mlp", "cnn", "lstm", "layernorm")
_BY_OUTPUTS = ("batchnorm", "attention")
_SAME = 1e-4

Choices = Mapping[str, tuple[str, Mapping[str, float]]]
"""By the name of a shape: what `auto` chose, and the seconds of each way; infinite if stopped."""


def measure(quick: bool) -> Result:
    """All of it; what fails is told and leaves the rest as it is."""
    failures: list[str] = []
    with sandbox() as home:
        home.warm_up()
        bench = _Bench(home, failures)
        mlps = bench.methods("mlp", 4 if quick else 32, tuple(_PEERS))
        cnns = bench.methods("cnn", 2 if quick else 8, ("fit",))
        choices = {
            name: found
            for name in (list(GRID)[1:2] if quick else GRID)
            if (found := bench.choice(name)) is not None
        }
        halving = {} if quick else bench.printed("halving") or {}
        counts = _COUNTS[:3] if quick else _COUNTS
        cost = bench.printed("cost", *map(str, counts)) or {}
        kinds = _ALIKE[:1] if quick else (*_ALIKE, *_BY_OUTPUTS)
        equal = bench.printed("equal", *kinds) or {}
    if not quick and cost:
        _PICTURE.write_text(picture(cost))
    return result(mlps, cnns, choices, halving, cost, equal, tuple(failures))


class _Bench:
    """Runs the program of this bench in one sandbox."""

    def __init__(self, home: Sandbox, failures: list[str]) -> None:
        self._home = home
        self._failures = failures

    def methods(self, kind: str, count: int, peers: Sequence[str]) -> dict[str, float]:
        """Seconds of whole programs, by method."""
        found = {}
        for method in ("sublet run", "sublet", *peers):
            run = (SUBLET, "run", "--quiet") if method == "sublet run" else (sys.executable,)
            words = (kind, method.partition(" ")[0], str(count))
            ended = self._ended(f"{count} {kind}, {method}", (*run, _PROGRAM, *words))
            if ended is not None:
                found[method] = ended[0]
        return found

    def choice(self, name: str) -> tuple[str, dict[str, float]] | None:
        """What `auto` chooses for a shape, and how long each way takes."""
        found = self.printed("shape", name, "auto")
        if found is None:
            return None
        seconds = {"auto": found[0]}
        for way in _WAYS:
            seconds[way] = self._bounded(name, way, seconds["auto"])
        best = min(_WAYS, key=seconds.__getitem__)
        if seconds["auto"] > _NEAR * seconds[best]:
            # Single runs differ by as much: both once more, and the faster of two counts.
            again = self.printed("shape", name, "auto")
            seconds["auto"] = min(seconds["auto"], again[0] if again else seconds["auto"])
            seconds[best] = min(seconds[best], self._bounded(name, best, seconds["auto"]))
        return str(found[1]).partition(" trials ")[2].partition(",")[0], seconds

    def printed(self, *words: str) -> Any:
        """What the program prints."""
        ended = self._ended(" ".join(words), (SUBLET, "run", "--quiet", _PROGRAM, *words))
        return None if ended is None else json.loads(ended[1].splitlines()[-1])

    def _bounded(self, name: str, way: str, auto: float) -> float:
        words = (SUBLET, "run", "--quiet", _PROGRAM, "shape", name, way)
        # Its start counts against the bound only.
        ended = self._ended(f"{name}, {way}", words, _ENOUGH * auto + 5, may_take_longer=True)
        return float("inf") if ended is None else float(json.loads(ended[1].splitlines()[-1])[0])

    def _ended(
        self,
        what: str,
        words: Sequence[str | Path],
        patience: float = _PATIENCE,
        may_take_longer: bool = False,
    ) -> tuple[float, str] | None:
        """The seconds that a program takes, and its output; None if it fails, which is noted."""
        print(f"  {what}", file=sys.stderr, flush=True)
        begin = time.perf_counter()
        with (self._home.directory / "errors").open("w+") as errors:
            child = subprocess.Popen(
                words,
                env=self._home.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            try:
                out, _ = child.communicate(timeout=patience)
            except subprocess.TimeoutExpired:
                child.terminate()
                child.communicate(timeout=60)
                if not may_take_longer:
                    self._failures.append(f"{what}: not done after {patience:g} s")
                return None
            seconds = time.perf_counter() - begin
            if child.returncode:
                errors.seek(0)
                last = "".join(errors.readlines()[-3:])
                self._failures.append(f"{what}: {last}")
                return None
        return seconds, out


def result(
    mlps: Mapping[str, float],
    cnns: Mapping[str, float],
    choices: Choices,
    halving: Mapping[str, Any],
    cost: Mapping[str, float],
    equal: Mapping[str, Sequence[float]],
    failures: tuple[str, ...] = (),
) -> Result:
    """The tables and the bars."""
    tables = [
        _methods("small MLPs, 5 epochs, start-up included", mlps),
        _methods("small CNNs, 5 epochs, start-up included", cnns),
        Table(
            "eight of a shape, by sublet.sweep: seconds of each way",
            ("shape", "auto", "fused", "packed", "serial", "chosen", "of the best"),
            tuple(
                (
                    name,
                    *(_bounded(seconds, way) for way in ("auto", *_WAYS)),
                    chosen,
                    figures.times(_of_best(seconds)),
                )
                for name, (chosen, seconds) in choices.items()
            ),
            (f"A way that takes {_ENOUGH:g} times as long as auto is stopped.",),
        ),
        Table(
            "whole sweeps of small MLPs, 5 epochs",
            ("trials", "seconds", "for each trial"),
            tuple(
                (count, figures.seconds(one), figures.seconds(one / int(count)))
                for count, one in cost.items()
            ),
        ),
        Table(
            "largest difference to the same trial alone, 5 epochs, float32",
            ("model and optimizer", "weights", "outputs"),
            tuple((name, f"{one[0]:.1e}", f"{one[1]:.1e}") for name, one in equal.items()),
        ),
    ]
    bars = [
        *_faster("32 MLPs", mlps, 10, 5),
        *_faster("8 CNNs", cnns, 3),
        *(
            Bar(f"auto, of the best way: {name}", _of_best(seconds), _NEAR, "at most")
            for name, (_, seconds) in choices.items()
        ),
    ]
    if halving:
        (whole, best), (short, found) = halving["whole"], halving["halving"]
        tables.insert(
            3,
            Table(
                "64 trials of up to 27 epochs",
                ("search", "seconds", "best rate"),
                (
                    ("all to the end", figures.seconds(whole), f"{best['rate']:.3g}"),
                    ("successive halving", figures.seconds(short), f"{found['rate']:.3g}"),
                ),
            ),
        )
        bars.append(Bar("halving, of the time of all", short / whole, 0.4, "at most"))
        bars.append(Bar("halving finds another best trial", best != found, 0, "at most", "trials"))
    by_trial = [one / int(count) for count, one in cost.items()]
    rises = sum(later > before for before, later in itertools.pairwise(by_trial))
    bars.append(Bar("steps to more trials that make one dearer", rises, 0, "at most", "steps"))
    for name, one in equal.items():
        outputs = name.split()[0] in _BY_OUTPUTS
        what = f"{'outputs of ' if outputs else ''}{name} differ{'' if outputs else 's'} by"
        bars.append(Bar(what, one[outputs], _SAME, "at most", ""))
    samples = {
        "mlps": dict(mlps),
        "cnns": dict(cnns),
        "choices": {
            name: [chosen, {way: one for way, one in by.items() if one < float("inf")}]
            for name, (chosen, by) in choices.items()
        },
        "halving": dict(halving),
        "cost": dict(cost),
        "equal": {name: list(one) for name, one in equal.items()},
    }
    return Result("sweeps", tuple(tables), tuple(bars), samples, failures)


def picture(cost: Mapping[str, float]) -> str:
    """The cost of a trial by the number of trials, both by powers, as SVG."""
    left, top, width, height = 70, 40, 620, 240
    counts = [float(count) for count in cost]
    each = [seconds / count for count, seconds in zip(counts, cost.values(), strict=True)]
    x = Axis(counts, left + 10, left + width - 10, log=True)
    y = Axis(each, top + height - 10, top + 10, log=True)
    points = [(x.place(one), y.place(other)) for one, other in zip(counts, each, strict=True)]
    return svg.document(
        [
            svg.text(left, 22, "seconds of a trial, by the trials of a sweep", weight="bold"),
            svg.frame(left, top, width, height),
            svg.curve(points, "#d9480f"),
            *(
                svg.text(place, top + height + 18, f"{count:g}", "middle", "#555", 11)
                for (place, _), count in zip(points, counts, strict=True)
            ),
            *(
                svg.text(left - 6, place + 4, figures.seconds(one), "end", "#555", 11)
                for place, one in {(y.place(one), one) for one in (min(each), max(each))}
            ),
        ],
        left + width + 20,
        top + height + 34,
    )


def _methods(title: str, seconds: Mapping[str, float]) -> Table:
    names = {"sublet run": "sublet.sweep by sublet run", "sublet": "sublet.sweep by python"}
    ours = seconds.get("sublet run", float("nan"))
    return Table(
        title,
        ("method", "seconds", "of ours"),
        tuple(
            ({**names, **_PEERS}[method], figures.seconds(one), figures.times(one / ours))
            for method, one in seconds.items()
        ),
    )


def _faster(
    what: str, seconds: Mapping[str, float], fit: float, peer: float | None = None
) -> list[Bar]:
    ours = seconds.get("sublet run")
    if ours is None:
        return []
    bars = []
    if "fit" in seconds:
        bars.append(Bar(f"{what}, over fit", seconds["fit"] / ours, fit, "at least"))
    peers = [one for name, one in seconds.items() if name in _PEERS and name != "fit"]
    if peer is not None and peers:
        bars.append(Bar(f"{what}, over the best peer", min(peers) / ours, peer, "at least"))
    return bars


def _of_best(seconds: Mapping[str, float]) -> float:
    return seconds["auto"] / min(seconds.values())


def _bounded(seconds: Mapping[str, float], way: str) -> str:
    one = seconds[way]
    return "longer" if one == float("inf") else figures.seconds(one)
