"""Trials of one architecture that train together in this process, epoch after epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import state
from .callbacks import TrialCallbacks
from .data import Data

Report = Callable[[int, int, dict[str, float]], None]
"""Called with a trial's number, an epoch and its metrics."""


@dataclass
class Member:
    """A trial in a cohort."""

    number: int
    model: Any
    callbacks: TrialCallbacks | None = None
    epochs: int = 0
    written: int = 0
    """The epoch whose weights the model has; a stack may be further."""
    stopped: bool = False
    """Whether its callbacks have ended it."""
    error: str = ""
    """Why it cannot go on."""


class Cohort:
    """Trains its members up to an epoch, as often as it is asked. Used by one thread.

    `make` makes a trainer of models: a stack, or one after the other. The models have the trained
    weights whenever `train` returns.
    """

    def __init__(
        self, members: Sequence[Member], data: Data, make: Callable[[list[Any]], Any]
    ) -> None:
        self.members = list(members)
        self._data = data
        self._make = make
        self._trainer: Any = None

    def train(self, until: int, report: Report) -> None:
        """Train every member up to this epoch; those that are stopped leave."""
        if self._trainer is None:
            self._trainer = self._make([member.model for member in self.members])
        validation = self._data.validation()
        while self.members and self.members[0].epochs < until:
            epoch = self.members[0].epochs + 1
            for member in self.members:
                if member.callbacks is not None:
                    member.callbacks.epoch_begins(epoch)
            logs = self._trainer.train_epoch(self._data.batches(epoch))
            if validation is not None:
                found = self._trainer.evaluate(validation)
                for own, more in zip(logs, found, strict=True):
                    own |= {f"val_{name}": value for name, value in more.items()}
            self._ended(epoch, logs, report)
        if self.members:
            self._write_back()

    def halves(self) -> list[Cohort]:
        """Two smaller cohorts that begin where the models are: after an out-of-memory."""
        self._trainer = None
        for member in self.members:
            member.epochs = member.written
        middle = (len(self.members) + 1) // 2
        parts = (self.members[:middle], self.members[middle:])
        return [Cohort(part, self._data, self._make) for part in parts if part]

    def close(self) -> None:
        """Let the trainer's memory go; the models keep their weights."""
        self._trainer = None

    def _write_back(self) -> None:
        self._trainer.write_back()
        for member in self.members:
            member.written = member.epochs

    def leave(self, numbers: Sequence[int]) -> None:
        """These trials end here; their models keep their weights."""
        gone = set(numbers)
        places = [at for at, one in enumerate(self.members) if one.number not in gone]
        leaving = [member for member in self.members if member.number in gone]
        if not leaving:
            return
        if self._trainer is not None:
            if places:
                self._trainer.keep(places)
            else:
                self._trainer.write_back()
                self._trainer = None
        self.members = [self.members[at] for at in places]
        for member in leaving:
            # Only now: early stopping puts its best weights into the model.
            if member.callbacks is not None:
                member.callbacks.end()

    def copy(self, source: int, target: int, rebuilt: Any) -> None:
        """Let `target` go on with the weights of `source`; `rebuilt` is a model with the parameters
        that it has from now on."""
        places = {member.number: at for at, member in enumerate(self.members)}
        at = places[target]
        numbers = _optimizer_numbers(self.members[at].model, rebuilt)
        if self._trainer is not None and numbers is not None:
            self._trainer.copy(places[source], at)
            for name, value in numbers.items():
                self._trainer.set(at, name, value)
            return
        # Something else than numbers of the optimizer: a new model in a new trainer.
        if self._trainer is not None:
            self._trainer.write_back()
            self._trainer = None
        put_trained(rebuilt, self.members[places[source]].model)
        self.members[at].model = rebuilt

    def _ended(self, epoch: int, logs: list[dict[str, float]], report: Report) -> None:
        """Tell of an epoch, and let go whom its callbacks have stopped."""
        for member in self.members:
            member.epochs = epoch
        if any(member.callbacks is not None for member in self.members):
            self._write_back()
        stopped = []
        for at, (member, own) in enumerate(zip(self.members, logs, strict=True)):
            report(member.number, epoch, own)
            if member.callbacks is not None:
                before = _rate(member.model)
                member.stopped = not member.callbacks.epoch_ended(epoch, own)
                if (rate := _rate(member.model)) != before and rate is not None:
                    self._trainer.set(at, "learning_rate", rate)
                if member.stopped:
                    stopped.append(member.number)
        if stopped:
            self.leave(stopped)


def _rate(model: Any) -> float | None:
    """The learning rate as a callback would change it; None for a schedule."""
    try:
        return float(model.optimizer.learning_rate)
    except (TypeError, ValueError, AttributeError):
        return None


def _optimizer_numbers(old: Any, new: Any) -> dict[str, float] | None:
    """The numbers of the optimizer that differ between two models; None if anything else does."""
    before, after = _config(old), _config(new)
    if before[0] != after[0] or before[1].keys() != after[1].keys():
        return None
    changed = {name: value for name, value in after[1].items() if before[1][name] != value}
    if not all(isinstance(value, float) for value in changed.values()):
        return None
    return changed


def _config(model: Any) -> tuple[Any, Mapping[str, Any]]:
    """What a model is without its names, and the settings of its optimizer."""
    optimizer = dict(model.optimizer.get_config())
    optimizer.pop("name", None)
    layers = []
    for layer in model._flatten_layers(include_self=False):
        config = {k: v for k, v in layer.get_config().items() if k != "name"}
        layers.append((type(layer).__name__, repr(config)))
    return layers, optimizer


def put_trained(model: Any, source: Any) -> None:
    """Weights and moments of another model; its own learning rate and other numbers stay."""
    own = {
        name: getattr(model.optimizer, name)
        for name in ("learning_rate",)
        if _rate(model) is not None
    }
    kept = {name: float(value) for name, value in own.items()}
    state.put(model, state.take(source))
    for name, value in kept.items():
        getattr(model.optimizer, name).assign(value)
