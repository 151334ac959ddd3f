"""Trials of one architecture that train together in this process, epoch after epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..stacks.numbers import numbers_of
from ..stacks.trainer import Logs, Trainer
from . import state
from .callbacks import TrialCallbacks
from .data import Data
from .ways import Make

Report = Callable[[int, int, dict[str, float]], None]
"""Called with a trial's number, an epoch and its metrics."""


@dataclass
class Member:
    """A trial in a cohort."""

    number: int
    model: Any
    seed: int = 0
    """What an order of its own depends on."""
    callbacks: TrialCallbacks | None = None
    epochs: int = 0
    stopped: bool = False
    """Whether its callbacks have ended it."""


class TrainingFailed(Exception):
    """The training itself has failed, as its cause says; not a callback, and not a report."""


class Cohort:
    """Trains its members up to an epoch, as often as it is asked. Used by one thread.

    `make` makes a trainer of models: a stack, or one after the other. The models have the trained
    weights whenever `train` returns; for their optimizers, call `write_back`.
    """

    def __init__(
        self, members: Sequence[Member], data: Data, make: Make, trainer: Trainer | None = None
    ) -> None:
        self.members = list(members)
        self._data = data
        self._make = make
        self._trainer = trainer

    def train(self, until: int, report: Report) -> None:
        """Train every member up to this epoch; those that are stopped leave."""
        validation = self._data.validation_batches()
        while self.members and self.members[0].epochs < until:
            epoch = self.members[0].epochs + 1
            for at, member in enumerate(self.members):
                if member.callbacks is not None:
                    self._called(at, member.callbacks.epoch_begins, epoch)
            try:
                logs = self._epoch(epoch, validation)
            except Exception as error:
                raise TrainingFailed from error
            self._ended(epoch, logs, report)
        self.write_back(False)

    def write_back(self, whole: bool = True) -> None:
        """Make the models what they have become, with their optimizers if they are to be whole."""
        if self._trainer is not None:
            self._trainer.write_back(whole)

    def _epoch(self, epoch: int, validation: Any) -> list[Logs]:
        """The metrics of each member in this epoch, and on the data for validation."""
        batches = self._data.batches(epoch, [member.seed for member in self.members])
        if self._trainer is None:
            self._trainer = self._make([member.model for member in self.members], batches.start())
        logs: list[Logs] = self._trainer.train_epoch(batches)
        if validation is not None:
            found = self._trainer.evaluate(validation)
            for own, more in zip(logs, found, strict=True):
                own |= {f"val_{name}": value for name, value in more.items()}
        return logs

    def close(self) -> None:
        """Let the trainer's memory go; the models keep their weights."""
        self.write_back()
        self._trainer = None

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
                self._trainer.write_back(False)
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
        if self._trainer is not None:
            old, new = self._trainer.numbers(at), numbers_of(rebuilt)
            if old.keys() == new.keys():
                self._trainer.copy(places[source], at)
                for name, value in new.items():
                    if value != old[name]:
                        self._trainer.set(at, name, value)
                return
        # Something else than numbers differs: a new model in a new trainer.
        self.close()
        put_trained(rebuilt, self.members[places[source]].model)
        self.members[at].model = rebuilt

    def _ended(self, epoch: int, logs: list[dict[str, float]], report: Report) -> None:
        """Tell of an epoch, and let go whom its callbacks have stopped."""
        for member in self.members:
            member.epochs = epoch
        if any(member.callbacks is not None for member in self.members):
            self.write_back()
        stopped = []
        for at, (member, own) in enumerate(zip(self.members, logs, strict=True)):
            report(member.number, epoch, own)
            if member.callbacks is not None:
                member.stopped = not self._called(at, member.callbacks.epoch_ended, epoch, own)
                if member.stopped:
                    stopped.append(member.number)
        if stopped:
            self.leave(stopped)

    def _called(self, at: int, hook: Callable[..., Any], *arguments: Any) -> Any:
        """Call the callbacks of a member; what they set in its model is set in the trainer."""
        model = self.members[at].model
        before = _rate(model)
        result = hook(*arguments)
        if (rate := _rate(model)) != before and rate is not None and self._trainer is not None:
            self._trainer.set(at, "learning_rate", rate)
        return result


def _rate(model: Any) -> float | None:
    """The learning rate as a callback would change it; None for a schedule."""
    try:
        return float(model.optimizer.learning_rate)
    except (TypeError, ValueError, AttributeError):
        return None


def put_trained(model: Any, source: Any) -> None:
    """Give a model weights and moments of another one; its learning rate stays its own."""
    put_state(model, state.take(source), copied=True)


def put_state(model: Any, kept: state.State, copied: bool) -> None:
    """Give a model the state in which it was left; if it is a copy of another's, its learning rate
    stays its own."""
    rate = _rate(model)
    state.put(model, kept)
    if copied and rate is not None:
        model.optimizer.learning_rate = rate
