"""A sweep as a picture: the learning curves of its trials, and parallel coordinates."""

import math
from collections.abc import Sequence
from typing import Any

from sublet import svg
from sublet.sweeps.records import Sweep, is_number, rank
from sublet.sweeps.table import parameter_names, shown

_WIDTH, _HEIGHT = 760, 260
_LEFT, _TOP, _RIGHT, _BOTTOM = 64, 34, 20, 34
_BEST, _FAINT = "#d9480f", "#b9cde0"


def draw(sweep: Sweep) -> str:
    """The picture as SVG."""
    parts = [*_curves(sweep, _TOP), *_coordinates(sweep, _TOP + _HEIGHT + 50)]
    return svg.document(parts, _WIDTH, 2 * _HEIGHT + 50 + _TOP)


def _curves(sweep: Sweep, top: float) -> list[str]:
    """The metric of each trial, epoch by epoch; the best trial on top."""
    metric = sweep.settings.metric
    best = sweep.best
    lines = [
        (trial, [one for one in enumerate(trial.curves.get(metric, ()), 1) if is_number(one[1])])
        for trial in reversed(rank(sweep.trials, sweep.settings.mode))
    ]
    values = [value for _, points in lines for _, value in points]
    height = _HEIGHT - _BOTTOM
    parts = [svg.text(_LEFT, top - 12, f"{metric} by epoch", weight="bold")]
    parts.append(svg.frame(_LEFT, top, _WIDTH - _LEFT - _RIGHT, height))
    if not values:
        return parts
    y = Axis(values, top + height - 6, top + 6)
    epochs = max(trial.epochs for trial in sweep.trials) or 1
    x = Axis([1, max(epochs, 2)], _LEFT + 8, _WIDTH - _RIGHT - 8)
    parts += [
        svg.text(_LEFT - 6, y.place(value) + 4, shown(float(value)), "end", "#555", 11)
        for value in (y.low, y.high)
    ]
    parts += [
        svg.text(x.place(epoch), top + height + 16, str(epoch), "middle", "#555", 11)
        for epoch in sorted({1, epochs})
    ]
    for trial, points in lines:
        colour = _BEST if best is not None and trial.number == best.number else _FAINT
        places = [(x.place(epoch), y.place(value)) for epoch, value in points]
        if len(places) == 1:
            places = [(places[0][0] - 2, places[0][1]), (places[0][0] + 2, places[0][1])]
        parts.append(svg.curve(places, colour))
    return parts


def _coordinates(sweep: Sweep, top: float) -> list[str]:
    """An axis for each parameter and one for the metric; a line through them for each trial."""
    names = parameter_names(sweep)
    trials = [t for t in reversed(rank(sweep.trials, sweep.settings.mode)) if is_number(t.value)]
    parts = [svg.text(_LEFT, top - 30, "parameters of each trial", weight="bold")]
    if not trials:
        return parts
    height = _HEIGHT - _BOTTOM
    columns: list[Sequence[Any]] = [[trial.params.get(name) for trial in trials] for name in names]
    columns.append([trial.value for trial in trials])
    step = (_WIDTH - 2 * _LEFT - _RIGHT) / max(1, len(columns) - 1)
    paths: list[list[tuple[float, float]]] = [[] for _ in trials]
    for place, (name, values) in enumerate(
        zip([*names, sweep.settings.metric], columns, strict=True)
    ):
        x = _LEFT + place * step
        axis = _axis(values, top + height, top, _is_log(sweep, name))
        parts.append(svg.rule(x, top, x, top + height))
        parts.append(svg.text(x, top - 8, name, "middle", "#111", 11))
        parts += [svg.text(x + 4, y + 4, label, "start", "#555", 10) for y, label in axis.labels()]
        for path, value in zip(paths, values, strict=True):
            path.append((x, axis.place(value)))
    best = sweep.best
    for trial, path in zip(trials, paths, strict=True):
        chosen = best is not None and trial.number == best.number
        parts.append(svg.curve(path, _BEST if chosen else _FAINT))
    return parts


def _is_log(sweep: Sweep, name: str) -> bool:
    return "loguniform" in sweep.settings.space.get(name, {})


class Axis:
    """Places for numbers between two ends."""

    def __init__(self, values: Sequence[float], first: float, last: float, log: bool = False):
        self._log = log and min(values) > 0
        self.low, self.high = min(values), max(values)
        self._first, self._last = first, last

    def place(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self._log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        share = 0.5 if high == low else (at - low) / (high - low)
        return self._first + share * (self._last - self._first)

    def labels(self) -> list[tuple[float, str]]:
        ends = {self.low, self.high}
        return [(self.place(value), shown(value)) for value in sorted(ends)]


class _Categories:
    """Places for values that are no numbers."""

    def __init__(self, values: Sequence[Any], first: float, last: float) -> None:
        self._names = list(dict.fromkeys(shown(value) for value in values))
        self._first, self._last = first, last

    def place(self, value: Any) -> float:
        at = self._names.index(shown(value))
        share = 0.5 if len(self._names) == 1 else at / (len(self._names) - 1)
        return self._first + share * (self._last - self._first)

    def labels(self) -> list[tuple[float, str]]:
        return [(self.place(name), name) for name in self._names]


def _axis(values: Sequence[Any], first: float, last: float, log: bool) -> Axis | _Categories:
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(values):
        return _Categories(values, first, last)
    return Axis(numbers, first, last, log)
