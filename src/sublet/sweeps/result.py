"""What `sublet.sweep` returns."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from sublet.errors import BadRequest
from sublet.sweeps import plot, table
from sublet.sweeps.records import Params, Sweep, Trial, TrialState, rank
from sublet.views.table import UNBOUNDED


class Difference(NamedTuple):
    """How far a trial is from the same trial trained by itself."""

    weights: float
    """The largest difference of any weight."""
    outputs: float
    """The largest difference of what the models put out for some rows."""


class TrialResult:
    """One trial of a sweep, after it."""

    def __init__(self, trial: Trial, model: Callable[[Trial], Any]) -> None:
        self._trial = trial
        self._find = model
        self._model: Any = None

    @property
    def number(self) -> int:
        """Counted from 0."""
        return self._trial.number

    @property
    def params(self) -> Params:
        """What the model was built with."""
        return dict(self._trial.params)

    @property
    def value(self) -> float | None:
        """The sweep's metric, for the weights that the model has; NaN if it diverged, None if it
        failed before its first epoch ended."""
        return self._trial.value

    @property
    def history(self) -> dict[str, list[float]]:
        """Metrics by name, a value for each epoch, as in Keras' History."""
        return {name: list(values) for name, values in self._trial.curves.items()}

    @property
    def state(self) -> TrialState:
        """done, pruned or failed."""
        return self._trial.state

    @property
    def error(self) -> str:
        """Why it failed; empty if it did not."""
        return self._trial.error

    @property
    def model(self) -> Any:
        """A compiled Keras model with the trained weights, built when it is first asked for."""
        if self._model is None:
            self._model = self._find(self._trial)
        return self._model

    def __repr__(self) -> str:
        value = "" if self.value is None else f" {table.shown(self.value)}"
        return f"<trial {self.number}: {self.state}{value} {self.params}>"


class SweepResult:
    """A sweep that has ended: its trials, best first in tables, by number in `trials`."""

    def __init__(
        self,
        sweep: Sweep,
        model: Callable[[Trial], Any],
        differences: dict[int, Difference] | None = None,
    ) -> None:
        self._sweep = sweep
        self.trials = [TrialResult(trial, model) for trial in sweep.trials]
        """In the order in which they were begun."""
        self.differences = differences or {}
        """With `verify`: how far trials are from the same trials trained by themselves, by their
        numbers."""

    @property
    def best(self) -> TrialResult:
        """The trial with the best value; raises BadRequest if none has one."""
        best = self._sweep.best
        if best is None:
            errors = {trial.error for trial in self.trials if trial.error}
            why = f": {sorted(errors)[0]}" if errors else ", or all diverged"
            raise BadRequest(f"No trial has a finite value{why}.", "See result.table().")
        return self.trials[best.number]

    @property
    def ranked(self) -> list[TrialResult]:
        """All trials, best first; those that failed or diverged last."""
        order = rank(self._sweep.trials, self._sweep.settings.mode)
        return [self.trials[trial.number] for trial in order]

    @property
    def directory(self) -> Path:
        """Where its journal is."""
        return Path(self._sweep.directory)

    @property
    def ways(self) -> list[str]:
        """How the trials of each architecture were trained, and why so."""
        return table.ways(self._sweep)

    def table(self) -> "TextTable":
        """A row for each trial, the best first: for print, and for notebooks."""
        return TextTable(self._sweep)

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Picture":
        """Learning curves and parallel coordinates, as SVG; a notebook shows them. With a path they
        are written there, too."""
        picture = Picture(plot.draw(self._sweep))
        if path is not None:
            Path(path).write_text(picture.svg)
        return picture

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """A row for each trial as CSV, which is written to a file if one is named."""
        text = table.as_csv(self._sweep)
        if path is not None:
            Path(path).write_text(text)
        return text

    def to_pandas(self) -> Any:
        """A row for each trial as a DataFrame; needs pandas."""
        try:
            import pandas  # type: ignore[import-untyped,unused-ignore]
        except ModuleNotFoundError:
            raise BadRequest(
                "pandas is not installed.", "Install it: pip install pandas. Or use to_csv()."
            ) from None
        names, rows = table.rows(self._sweep)
        return pandas.DataFrame(rows, columns=names)

    def __repr__(self) -> str:
        best = "" if self._sweep.best is None else f", best {self.best!r}"
        return f"<sublet sweep, {table.count(len(self.trials), 'trial')}{best}>"

    def _repr_html_(self) -> str:
        return table.html(self._sweep)


class TextTable:
    """A sweep's table, as text and as HTML."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep

    def __str__(self) -> str:
        return "\n".join(line.rstrip() for line in table.lines(self._sweep, UNBOUNDED))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return table.html(self._sweep)


class Picture:
    """An SVG picture, which a notebook shows."""

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<SVG, {len(self.svg)} bytes; show it in a notebook, or write it to a file>"
