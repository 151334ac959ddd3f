"""A sweep as a table: a row for each trial, the best first."""

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

from sublet.sweeps.records import Sweep, Trial, rank
from sublet.sweeps.space import plain_value
from sublet.text import plain
from sublet.units import format_seconds
from sublet.views.table import Column, lay_out, to_html

_STATES = {"done": "", "pruned": "pruned", "failed": "failed"}


def lines(sweep: Sweep, width: int, most: int | None = None) -> list[str]:
    """The table in so many columns; with `most`, of the best trials only."""
    trials = rank(sweep.trials, sweep.settings.mode)[:most]
    return lay_out(_columns(sweep), [_cells(sweep, trial) for trial in trials], width)


def html(sweep: Sweep) -> str:
    """The table for a notebook."""
    trials = rank(sweep.trials, sweep.settings.mode)
    return to_html(_columns(sweep), [_cells(sweep, trial) for trial in trials])


def ways(sweep: Sweep) -> list[str]:
    """One line for each architecture: how its trials are trained, and why so."""
    return [f"{row.group}: {count(row.trials, 'trial')} {row.way}, {row.why}" for row in sweep.ways]


def count(number: int, noun: str) -> str:
    """`1 trial`, `4 trials`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def rows(sweep: Sweep) -> tuple[list[str], list[list[Any]]]:
    """Names and plain values for files and data frames, in the order of the trials."""
    params = parameter_names(sweep)
    metrics = list(dict.fromkeys(name for trial in sweep.trials for name in trial.curves))
    names = ["trial", *params, *metrics, "value", "epochs", "state", "seconds", "error"]
    found = []
    for trial in sweep.trials:
        last = [trial.curves[name][-1] if name in trial.curves else None for name in metrics]
        values = [plain_value(trial.params.get(name)) for name in params]
        found.append(
            [
                trial.number,
                *values,
                *last,
                trial.value,
                trial.epochs,
                trial.state,
                seconds(trial),
                trial.error,
            ]
        )
    return names, found


def as_csv(sweep: Sweep) -> str:
    """The rows as CSV."""
    names, found = rows(sweep)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(["" if cell is None else cell for cell in row] for row in found)
    return text.getvalue()


def parameter_names(sweep: Sweep) -> list[str]:
    """The parameters, in the order of the space."""
    own = (name for trial in sweep.trials for name in trial.params)
    return list(dict.fromkeys([*sweep.settings.space, *own]))


def seconds(trial: Trial) -> float | None:
    """From its first report to its end."""
    if trial.began is None or trial.ended is None:
        return None
    return round(trial.ended - trial.began, 3)


def shown(value: Any) -> str:
    """A value of a parameter or a metric, short."""
    if isinstance(value, bool) or not isinstance(value, float):
        return plain(str(plain_value(value)))
    return "nan" if math.isnan(value) else f"{value:.4g}"


def _columns(sweep: Sweep) -> Sequence[Column]:
    names = parameter_names(sweep)
    params = [Column(plain(name), right=True, least=6) for name in names]
    return [
        Column("trial", right=True),
        Column(plain(sweep.settings.metric), right=True),
        *params,
        Column("epochs", right=True, rank=1),
        Column("state"),
        Column("time", right=True, rank=2),
        Column("error", least=10, rank=3),
    ]


def _cells(sweep: Sweep, trial: Trial) -> list[str]:
    took = seconds(trial)
    return [
        str(trial.number),
        "" if trial.value is None else shown(trial.value),
        *(shown(trial.params.get(name)) for name in parameter_names(sweep)),
        f"{trial.epochs}/{sweep.settings.epochs}" if sweep.settings.epochs > 1 else "",
        _STATES.get(trial.state, trial.state),
        "" if took is None or sweep.settings.kind == "models" else format_seconds(took),
        plain(trial.error),
    ]
