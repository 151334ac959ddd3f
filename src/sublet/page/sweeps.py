"""The user's sweeps, as the page shows them: bounded, whatever their journals hold."""

import math
import os
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from sublet.errors import BadRequest, SubletError
from sublet.home import Home
from sublet.page.job_rows import shown_name, shown_text
from sublet.sweeps import journal, reading
from sublet.sweeps.records import Sweep, Trial, TrialState, is_number, rank

_MOST_TRIALS = 1000
_MOST_CURVES = 100
"""Trials whose curves are sent: those that run, and the best."""
_MOST_POINTS = 200
_MOST_PARAMETERS = 30
Value = float | int | bool | str | None


class SweepRow(Struct, frozen=True):
    """One sweep in the list."""

    id: str
    name: str
    state: str
    metric: str
    mode: str
    began: float
    updated: float
    counts: dict[str, int]
    """Trials by state."""
    wanted: int
    """Trials at most; 0 if the search itself ends."""
    best: float | None = None


class TrialRow(Struct, frozen=True):
    """One trial: its parameters in the order of the page's."""

    number: int
    state: TrialState
    params: tuple[Value, ...]
    value: float | None
    epochs: int
    seconds: float | None
    error: str = ""
    job: int | None = None
    curve: tuple[float | None, ...] = ()
    """The metric after each `every` epochs; empty where it is left out."""
    every: int = 1


class ParameterRow(Struct, frozen=True):
    """One parameter."""

    name: str
    logarithmic: bool


class SweepPage(Struct, frozen=True):
    """All that is shown of one sweep; its trials best first."""

    sweep: SweepRow
    search: str
    epochs: int
    directory: str
    ways: tuple[str, ...]
    parameters: tuple[ParameterRow, ...]
    trials: tuple[TrialRow, ...]
    left_out: int
    version: str
    """Another one, if anything is new."""


class SweepReader:
    """Reads a journal again only if it has changed. Any thread may ask."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, Sweep | None]] = {}

    def rows(self) -> list[SweepRow]:
        """The recent sweeps, the newest first."""
        with self._lock:
            names = self._names()
            self._known = {name: one for name, one in self._known.items() if name in names}
            found = (self._read(name)[1] for name in names)
            return [_row(sweep) for sweep in found if sweep is not None]

    def page(self, name: str, seen: str) -> SweepPage | None:
        """One of them; None if it is what was seen. Raises BadRequest if there is none."""
        with self._lock:
            version, sweep = self._read(name)
        if sweep is None:
            raise BadRequest(
                f"There is no sweep {shown_name(name)}, or it cannot be read.",
                "The list has the recent ones.",
            )
        return None if version == seen else _page(sweep, version)

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self._home.sweeps), reverse=True)[: reading.KEPT]
        except OSError:
            return []

    def _read(self, name: str) -> tuple[str, Sweep | None]:
        version = self._version(name)
        known = self._known.get(name)
        if known is None or known[0] != version:
            try:
                known = self._known[name] = (version, reading.read(self._home, name))
            except (SubletError, OSError):
                known = (version, None)
        return known

    def _version(self, name: str) -> str:
        """What tells a journal from how it was before, and whether a process works on it."""
        if name not in self._names():
            return ""
        directory = self._home.sweeps / name
        try:
            found = os.stat(directory / journal.JOURNAL)
        except OSError:
            return ""
        return f"{found.st_size}-{found.st_mtime_ns}-{journal.is_held(directory)}"


def _row(sweep: Sweep) -> SweepRow:
    counts: dict[str, int] = {}
    for trial in sweep.trials:
        counts[trial.state] = counts.get(trial.state, 0) + 1
    return SweepRow(
        sweep.id,
        shown_name(sweep.name),
        sweep.state,
        shown_name(sweep.settings.metric),
        sweep.settings.mode,
        sweep.began,
        sweep.updated,
        counts,
        sweep.settings.trials,
        sweep.best.value if sweep.best is not None else None,
    )


def _page(sweep: Sweep, version: str) -> SweepPage:
    ranked = rank(sweep.trials, sweep.settings.mode)
    shown = [trial for trial in ranked if trial.state == "running"]
    shown += [trial for trial in ranked if trial.state != "running"]
    drawn = {trial.number for trial in shown[:_MOST_CURVES]}
    names = _parameters(sweep)
    return SweepPage(
        _row(sweep),
        shown_name(sweep.settings.search),
        sweep.settings.epochs,
        shown_name(sweep.directory),
        tuple(shown_text(f"{one.trials} trials {one.way}: {one.why}") for one in sweep.ways[:10]),
        tuple(ParameterRow(shown_name(one), _is_log(sweep, one)) for one in names),
        tuple(
            _trial(trial, names, sweep, trial.number in drawn) for trial in ranked[:_MOST_TRIALS]
        ),
        max(0, len(ranked) - _MOST_TRIALS),
        version,
    )


def _parameters(sweep: Sweep) -> list[str]:
    """In the order of the space, then of the trials."""
    trials = (name for trial in sweep.trials for name in trial.params)
    return list(dict.fromkeys((*sweep.settings.space, *trials)))[:_MOST_PARAMETERS]


def _is_log(sweep: Sweep, name: str) -> bool:
    settings = sweep.settings.space.get(name)
    return isinstance(settings, dict) and "loguniform" in settings


def _trial(trial: Trial, names: Sequence[str], sweep: Sweep, drawn: bool) -> TrialRow:
    curve = trial.curves.get(sweep.settings.metric, ()) if drawn else ()
    every = -(-len(curve) // _MOST_POINTS) or 1
    return TrialRow(
        trial.number,
        trial.state,
        tuple(_value(trial.params.get(name)) for name in names),
        trial.value if is_number(trial.value) else None,
        trial.epochs,
        _seconds(trial, sweep),
        shown_text(trial.error),
        trial.job,
        tuple(_numbers(curve[every - 1 :: every])),
        every,
    )


def _seconds(trial: Trial, sweep: Sweep) -> float | None:
    """How long it trained; None where it is told of in one go, when it was over."""
    if trial.began is None:
        return None
    return max(0.0, (trial.ended or sweep.updated) - trial.began) or None


def _numbers(values: Iterable[float]) -> Iterable[float | None]:
    return (value if math.isfinite(value) else None for value in values)


def _value(value: Any) -> Value:
    """A number as it is, anything else as text."""
    if value is None or isinstance(value, bool | int):
        return value if value is None or abs(value) < 1 << 53 else shown_name(str(value))
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return shown_name(str(value))
