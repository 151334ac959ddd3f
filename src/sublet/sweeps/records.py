"""What is known of a sweep: its settings, its trials, their curves. Frozen, and free of TensorFlow.

Records are made by `apply` alone, from the events of a sweep's journal in their order. So whoever
reads a journal, while the sweep runs or afterwards, sees what the sweep itself sees.
"""

import math
from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct, structs

TrialState = Literal["waiting", "running", "done", "pruned", "failed"]
SweepState = Literal["running", "finished", "stopped"]
Mode = Literal["min", "max"]
Params = dict[str, Any]
Logs = dict[str, float | None]
"""Metrics by name, of one epoch; None stands for a value that is not a number."""


class Settings(Struct, frozen=True):
    """What a sweep is: two of them go on in the same directory only if these are equal."""

    kind: Literal["models", "script"]
    subject: str
    """The function that builds the models, or the program."""
    space: dict[str, Any]
    """Each parameter and what it may be, as plain values."""
    search: str
    metric: str
    mode: Mode
    epochs: int
    """Of each trial; 1 for programs that report once."""
    trials: int
    """At most so many; 0 if the search itself ends."""
    seed: int
    options: dict[str, Any] = {}
    """What else changes the results: batch size, the shape of the data, arguments."""


class WayRecord(Struct, frozen=True):
    """How the trials of one architecture were trained, and why so."""

    group: str
    way: str
    """fused, packed or serial."""
    trials: int
    why: str


class Trial(Struct, frozen=True):
    """One trial. Times are wall seconds."""

    number: int
    params: Params
    state: TrialState = "waiting"
    value: float | None = None
    """Of the sweep's metric after its last epoch; NaN if it diverged, None before the first."""
    epochs: int = 0
    """How many were trained."""
    curves: dict[str, tuple[float, ...]] = {}
    """A value for each epoch, by the name of the metric."""
    error: str = ""
    began: float | None = None
    ended: float | None = None
    job: int | None = None
    """The job of a program's trial."""

    @property
    def over(self) -> bool:
        """Whether it will not be trained any further."""
        return self.state in ("done", "pruned", "failed")


class RungRecord(Struct, frozen=True):
    """Trials that train together up to an epoch; then the search looks at them again."""

    trials: tuple[int, ...]
    until: int


class Sweep(Struct, frozen=True):
    """A sweep as its journal tells it."""

    id: str
    """Its name in the list of recent sweeps."""
    directory: str
    name: str
    settings: Settings
    began: float
    updated: float
    state: SweepState = "running"
    pid: int | None = None
    ways: tuple[WayRecord, ...] = ()
    trials: tuple[Trial, ...] = ()
    rung: RungRecord | None = None
    """The one that was begun last."""
    rungs: int = 0

    @property
    def best(self) -> Trial | None:
        """The best trial so far; None if none has a value."""
        ranked = rank(self.trials, self.settings.mode)
        return ranked[0] if ranked and is_number(ranked[0].value) else None


class TrialBegan(Struct, frozen=True, tag_field="event", tag="trial"):
    """A trial has its parameters; it is trained later."""

    trial: int
    params: Params
    at: float


class RungBegan(Struct, frozen=True, tag_field="event", tag="rung"):
    """These trials train up to this epoch."""

    trials: tuple[int, ...]
    until: int
    at: float


class ParamsChanged(Struct, frozen=True, tag_field="event", tag="params"):
    """A trial took over the weights of another one, and has new parameters."""

    trial: int
    source: int
    params: Params
    epoch: int
    at: float


class EpochEnded(Struct, frozen=True, tag_field="event", tag="epoch"):
    """A trial has trained one more epoch."""

    trial: int
    epoch: int
    """Counted from 1."""
    logs: Logs
    at: float


class TrialEnded(Struct, frozen=True, tag_field="event", tag="ended"):
    """A trial is over. `value` replaces that of its last epoch, if there is one."""

    trial: int
    state: TrialState
    at: float
    value: float | None = None
    error: str = ""


class JobStarted(Struct, frozen=True, tag_field="event", tag="job"):
    """The program of a trial is in the queue as this job."""

    trial: int
    job: int
    at: float


class TrialReached(Struct, frozen=True, tag_field="event", tag="reached"):
    """The program of a trial has ended well with this budget of epochs."""

    trial: int
    epochs: int
    value: float | None
    """Of the metric; None if it is not a number."""
    at: float


class WayChosen(Struct, frozen=True, tag_field="event", tag="way"):
    """How the trials of one architecture are trained."""

    group: str
    way: str
    trials: int
    why: str
    at: float


class RunBegan(Struct, frozen=True, tag_field="event", tag="run"):
    """A process works on the sweep, for the first time or again."""

    pid: int
    at: float


class SweepEnded(Struct, frozen=True, tag_field="event", tag="finished"):
    """Nothing is left to train."""

    at: float


Event = (
    TrialBegan
    | RungBegan
    | ParamsChanged
    | EpochEnded
    | TrialEnded
    | JobStarted
    | TrialReached
    | WayChosen
    | RunBegan
    | SweepEnded
)


def apply(sweep: Sweep, event: Event) -> Sweep:
    """The sweep after this event. One about a trial that is not there changes nothing."""
    sweep = structs.replace(sweep, updated=event.at)
    match event:
        case TrialBegan(trial=number, params=params):
            if number != len(sweep.trials):
                return sweep
            return structs.replace(sweep, trials=(*sweep.trials, Trial(number, params)))
        case RungBegan():
            rung, chosen = RungRecord(event.trials, event.until), set(event.trials)
            trials = tuple(
                structs.replace(trial, job=None) if trial.number in chosen else trial
                for trial in sweep.trials
            )
            return structs.replace(sweep, rung=rung, rungs=sweep.rungs + 1, trials=trials)
        case WayChosen():
            row = WayRecord(event.group, event.way, event.trials, event.why)
            others = tuple(one for one in sweep.ways if one.group != row.group)
            return structs.replace(sweep, ways=(*others, row))
        case RunBegan(pid=pid):
            return structs.replace(sweep, pid=pid, state="running")
        case SweepEnded():
            return structs.replace(sweep, state="finished")
    if not 0 <= event.trial < len(sweep.trials):
        return sweep
    changed = _changed(sweep.trials[event.trial], event, sweep.settings)
    trials = (*sweep.trials[: event.trial], changed, *sweep.trials[event.trial + 1 :])
    return structs.replace(sweep, trials=trials)


def _changed(
    trial: Trial,
    event: EpochEnded | TrialEnded | ParamsChanged | JobStarted | TrialReached,
    settings: Settings,
) -> Trial:
    match event:
        case EpochEnded():
            curves = _extended(trial.curves, event.epoch, event.logs)
            reported = settings.metric in event.logs
            value = curves[settings.metric][-1] if reported else trial.value
            return structs.replace(
                trial,
                state="running" if trial.state == "waiting" else trial.state,
                value=value,
                # What a program calls an epoch is its own affair.
                epochs=event.epoch if settings.kind == "models" else trial.epochs,
                curves=curves,
                began=trial.began or event.at,
            )
        case TrialEnded():
            value = trial.value if event.value is None else event.value
            return structs.replace(
                trial,
                state=event.state,
                value=value,
                error=event.error,
                ended=event.at,
                began=trial.began or event.at,
            )
        case TrialReached():
            value = math.nan if event.value is None else event.value
            return structs.replace(trial, epochs=event.epochs, value=value)
        case ParamsChanged():
            return structs.replace(trial, params=event.params)
        case JobStarted():
            return structs.replace(
                trial, job=event.job, state="running", began=trial.began or event.at
            )


def _extended(
    curves: dict[str, tuple[float, ...]], epoch: int, logs: Logs
) -> dict[str, tuple[float, ...]]:
    """The curves with this epoch at their end: a trial that starts anew replaces what it had."""
    longer = {}
    for name in {**curves, **logs}:
        before = curves.get(name, ())[: epoch - 1]
        before += (math.nan,) * (epoch - 1 - len(before))
        value = logs.get(name)
        longer[name] = (*before, math.nan if value is None else value)
    return longer


def is_number(value: float | None) -> bool:
    """Whether a trial can be compared by this value."""
    return value is not None and math.isfinite(value)


def rank(trials: Iterable[Trial], mode: Mode) -> list[Trial]:
    """The trials, best first; those without a finite value last, in their order."""
    sign = 1 if mode == "min" else -1

    def key(trial: Trial) -> tuple[bool, float, int]:
        comparable = is_number(trial.value) and trial.state != "failed"
        place = sign * trial.value if comparable and trial.value is not None else 0.0
        return not comparable, place, trial.number

    return sorted(trials, key=key)
