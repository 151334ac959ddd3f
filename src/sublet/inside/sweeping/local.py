"""The trials that train in this process: built, put into cohorts, trained, copied, let go.

A trial whose training raises, or does not fit in memory by itself, fails alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..training.refused import Refused
from . import state
from .building import Builder, shapes
from .callbacks import TrialCallbacks, hooks_of_batches, of_trial
from .cohort import Cohort, Member, Report, TrainingFailed, put_state, put_trained
from .data import Data
from .state import Kept, State
from .ways import Make

Failed = Callable[[int, str], None]
"""Called with the number of a trial that cannot go on, and why."""


class Local:
    """Owns the models of this process. Used by one thread."""

    def __init__(self, builder: Builder, data: Data, epochs: int, callbacks: Any) -> None:
        self._builder = builder
        self.data = data
        self.epochs = epochs
        self._callbacks = callbacks
        self._members: dict[int, Member] = {}
        self._params: dict[int, dict[str, Any]] = {}
        self._cohorts: list[Cohort] = []

    def check(self, params: Mapping[str, Any]) -> None:
        """Raise Refused if the builder gives another model for the same parameters."""
        self._builder.check(list(params))
        first, second = (self.model(params) for _ in range(2))
        if shapes(first) != shapes(second):
            raise Refused(
                f"The builder returned different models for the same parameters, {dict(params)}.",
                "Let its model depend on its parameters alone.",
            )

    def model(self, params: Mapping[str, Any]) -> Any:
        """A model with its initial weights."""
        return self._builder.build(params, self.data.some(1))

    def build(self, trial: Any, kept: Kept | None) -> Any:
        """Build the model of a trial, which has a `number` and `params`; it trains once it is in a
        cohort. With `kept`, it goes on from there."""
        model = self.model(trial.params)
        if kept is not None:
            put_state(model, kept.state, kept.copied)
        chosen = of_trial(self._callbacks, trial)
        if names := hooks_of_batches(chosen):
            raise Refused(
                f"{', '.join(names)} wants to be called for each batch, and a sweep calls "
                "callbacks for each epoch.",
                "Leave it out; for TensorBoard, give tensorboard=DIRECTORY.",
            )
        calls = TrialCallbacks(chosen, model, self.epochs) if chosen else None
        start = 0 if kept is None else kept.epochs
        self._members[trial.number] = Member(trial.number, model, calls, start)
        self._params[trial.number] = dict(trial.params)
        return model

    def built(self, number: int) -> Any:
        """The model of a trial."""
        return self._members[number].model

    def again(self, number: int) -> Any:
        """Another model like that of this trial."""
        return self.model(self._params[number])

    def join(self, numbers: Sequence[int], make: Make, trainer: Any = None) -> None:
        """Put trials that were built into a cohort; `make` makes its trainer, if there is none."""
        members = [self._members[number] for number in numbers]
        self._cohorts.append(Cohort(members, self.data, make, trainer))

    def train(
        self, numbers: Sequence[int], until: int, report: Report, failed: Failed
    ) -> Iterator[tuple[int, ...]]:
        """Train all of these up to an epoch, cohort by cohort; the trials that have come there, as
        soon as they have."""
        wanted = set(numbers)
        waiting = [one for one in self._cohorts if wanted & {m.number for m in one.members}]
        while waiting:
            cohort = waiting.pop(0)
            members = list(cohort.members)
            try:
                cohort.train(until, report)
            except TrainingFailed as failure:
                error = failure.__cause__
                assert error is not None
                if len(cohort.members) > 1:
                    raise error from None
                self._cohorts.remove(cohort)
                failed(cohort.members[0].number, said(error))
            yield tuple(member.number for member in members)

    def leave(self, numbers: Sequence[int]) -> None:
        """These trials end; their models keep their weights until `drop`."""
        for cohort in self._cohorts:
            cohort.leave(numbers)
        self._cohorts = [cohort for cohort in self._cohorts if cohort.members]

    def copy(self, source: int, target: int, params: Mapping[str, Any]) -> None:
        """Let `target` go on with the weights of `source` and these parameters."""
        rebuilt = self.model(params)
        for cohort in self._cohorts:
            if {source, target} <= {member.number for member in cohort.members}:
                cohort.copy(source, target, rebuilt)
                return
        put_trained(rebuilt, self._members[source].model)
        member = self._members[target]
        for cohort in self._cohorts:
            if member in cohort.members:
                cohort.close()
        member.model = rebuilt

    def stopped(self, number: int) -> bool:
        """Whether a trial's callbacks have ended it."""
        return self._members[number].stopped

    def best_epoch(self, number: int) -> int | None:
        """The epoch whose weights early stopping has put back; None if it has not."""
        calls = self._members[number].callbacks
        return None if calls is None else calls.best_epoch()

    def state(self, number: int) -> State:
        """All variables of a trial, between two rungs."""
        return state.take(self._members[number].model)

    def weights(self, number: int) -> State:
        """The weights of a trial that has ended."""
        return state.weights(self._members[number].model)

    def drop(self, number: int) -> Any:
        """Forget a trial that has ended; its model."""
        member = self._members.pop(number, None)
        return None if member is None else member.model


def said(error: BaseException) -> str:
    """What went wrong, in one line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].strip() if lines else ''}".rstrip(": ")[:300]
