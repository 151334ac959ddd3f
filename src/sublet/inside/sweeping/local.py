"""The trials that train in this process: built, put into cohorts, trained, copied, let go.

A trial whose training raises, or does not fit in memory by itself, fails alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..current_lease import say
from ..stacks.batches import Batches
from ..training.refused import Refused
from . import state
from .building import Builder, metric_names, no_metric, said, shapes
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
        self._checked: dict[str, Any] | None = None
        self._spare: list[Any] = []
        """Models of the parameters that were checked."""

    def check(self, params: Mapping[str, Any], metric: str) -> None:
        """Raise Refused if the builder gives another model for the same parameters, or one that
        cannot be trained with the data, or that has no such metric."""
        self._builder.check(list(params))
        self._checked = dict(params)
        first, second = self._spare = [self.model(params) for _ in range(2)]
        if shapes(first) != shapes(second):
            raise Refused(
                f"The builder returned different models for the same parameters, {dict(params)}.",
                "Let its model depend on its parameters alone.",
            )
        others = {id(one) for one in second.trainable_variables}
        if paths := sorted(one.path for one in first.trainable_variables if id(one) in others):
            raise Refused(
                f"The builder returned the same weights twice: {', '.join(paths[:3])}.",
                "Let it make all layers anew in each call.",
            )
        if any((a != b).any() for a, b in zip(*map(state.weights, (first, second)), strict=True)):
            say(
                "the builder gives other initial weights each time, although Keras is seeded: "
                "trials cannot be repeated"
            )
        names = metric_names(first, self.data.batches(1, [0]).start(), self.data.has_validation)
        if names is not None and metric not in names:
            raise Refused(*no_metric(metric, names, self.data.has_validation))

    def model(self, params: Mapping[str, Any]) -> Any:
        """A model with its initial weights."""
        return self._builder.build(params, self.data.some(1))

    def _new(self, params: Mapping[str, Any]) -> Any:
        """The same; one that was built to be checked is used."""
        if params == self._checked and self._spare:
            return self._spare.pop()  # The first, which has an optimizer with variables, is last.
        return self.model(params)

    def build(self, trial: Any, kept: Kept | None) -> Any:
        """Build the model of a trial, which has a `number` and `params`; it trains once it is in a
        cohort. With `kept`, it goes on from there."""
        model = self._new(trial.params)
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
        member = Member(trial.number, model, own_seed(trial), calls, start)
        self._members[trial.number] = member
        self._params[trial.number] = dict(trial.params)
        return model

    def built(self, number: int) -> Any:
        """The model of a trial."""
        return self._members[number].model

    def again(self, number: int) -> Any:
        """Another model like that of this trial."""
        return self._new(self._params[number])

    def batches(self, numbers: Sequence[int]) -> Batches:
        """Batches such as these trials get together."""
        return self.data.batches(1, [self._members[number].seed for number in numbers])

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
        put_trained(rebuilt, self._whole(source))
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
        return state.take(self._whole(number))

    def weights(self, number: int) -> State:
        """The weights of a trial that has ended."""
        return state.weights(self._members[number].model)

    def _whole(self, number: int) -> Any:
        """The model of a trial, with its optimizer as it is now."""
        for cohort in self._cohorts:
            if any(member.number == number for member in cohort.members):
                cohort.write_back()
        return self._members[number].model

    def drop(self, number: int) -> Any:
        """Forget a trial that has ended; its model."""
        member = self._members.pop(number, None)
        return None if member is None else member.model


def own_seed(trial: Any) -> int:
    """What a trial's own order of rows depends on: its seed, or its number if it has none."""
    return int(trial.params.get("seed", trial.number))
