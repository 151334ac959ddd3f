"""All variables of the models in a stack, each with a leading model axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..optimizer_variables import variables_of
from .trainer import CannotStack


class State:
    """The first model's variables stand for those of all models: they are the keys, and they are
    never assigned to while the stack is trained."""

    def __init__(self, models: Sequence[Any]) -> None:
        first = models[0]
        self.weights = list(first.trainable_variables)
        self.others = _others(first)
        self.slots = variables_of(first.optimizer)
        self.metrics = list(first.metrics_variables)
        """They begin each epoch at zero."""
        self._stacked: dict[int, Any] = {}
        for one, values in self._own(models):
            self._put(one, values)

    def _own(self, models: Sequence[Any]) -> Iterator[tuple[Any, list[Any]]]:
        """What the models' own variables are, for each variable of the first."""
        owned = [
            [*model.trainable_variables, *_others(model), *_slots(model, self.slots)]
            for model in models
        ]
        keys = [*self.weights, *self.others, *self.slots]
        if any(len(mine) != len(keys) for mine in owned):
            raise CannotStack(models[0].name, "the models do not have the same variables")
        for place, one in enumerate(keys):
            yield one, [_value(mine[place]) for mine in owned]
        for one in self.metrics:
            yield one, [_value(one)] * len(models)

    @property
    def keys(self) -> list[Any]:
        """The variables of the first model that all this is about."""
        return [*self.weights, *self.others, *self.slots, *self.metrics]

    def of(self, variable: Any) -> Any:
        """The stacked variable."""
        return self._stacked[id(variable)]

    def read(self) -> dict[int, Any]:
        """All values, by the identity of the first model's variables."""
        return {known: tf.convert_to_tensor(one) for known, one in self._stacked.items()}

    def put_back(self, values: Mapping[int, Any]) -> None:
        """Make all variables what `read` has found earlier."""
        for known, value in values.items():
            self._stacked[known].assign(value)

    def assign(self, new: Mapping[int, Any], steps: Any) -> None:
        """Change variables, when all new values are there, and count the step: one that runs out
        of memory before that has changed nothing."""
        ready = list(new.values())
        with tf.control_dependencies(ready):
            for known, value in new.items():
                self._stacked[known].assign(value, read_value=False)
            steps.assign_add(1, read_value=False)

    def begin(self) -> None:
        """Have all metrics begin anew."""
        for one in self.metrics:
            variable = self.of(one)
            variable.assign(tf.zeros_like(variable))

    def rows(self, variables: Sequence[Any]) -> list[Any]:
        """The values of these variables, as arrays with a model axis."""
        return [self.of(one).numpy() for one in variables]

    def keep(self, chosen: Sequence[int]) -> None:
        """Go on with these models. The graph is made anew after that."""
        rows = {id(one): tf.gather(self.of(one), list(chosen)) for one in self.keys}
        self._stacked = {}
        for one in self.keys:
            self._put(one, rows[id(one)])

    def write_back(self, models: Mapping[int, Any], whole: bool) -> None:
        """Make the own variables of models, by their places, what the stack has for them; those of
        optimizers only if the `whole` is wanted."""
        keys = [*self.weights, *self.others, *(self.slots if whole else ())]
        values = [one.numpy() for one in map(self.of, keys)]
        for place, model in models.items():
            if whole and not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)
            own = variables_of(model.optimizer) if whole else ()
            mine = [*model.trainable_variables, *_others(model), *own]
            for variable, value in zip(mine, values, strict=True):
                variable.assign(value[place])

    def _put(self, key: Any, values: Any) -> None:
        stacked = np.stack(values) if isinstance(values, list) else values
        self._stacked[id(key)] = tf.Variable(stacked, trainable=False, dtype=_dtype(key))


def copied(model: Any) -> list[Any]:
    """The variables that one model may take over from another: neither seeds nor learning rates."""
    known = [*model.trainable_variables, *_others(model), *variables_of(model.optimizer)]
    return [one for one in known if not is_seed(one) and not one.path.endswith("learning_rate")]


def is_seed(variable: Any) -> bool:
    """Whether it is the state of a generator of random numbers."""
    return bool(variable.path.endswith("seed_generator_state"))


def _others(model: Any) -> list[Any]:
    told = {id(one) for one in [*model.trainable_variables, *model.metrics_variables]}
    return [one for one in model.variables if id(one) not in told]


def _slots(model: Any, first: Sequence[Any]) -> list[Any]:
    """The variables of the optimizer; before its first step, those of the first model's are the
    same but for the learning rate."""
    if model.optimizer.built:
        return variables_of(model.optimizer)
    own = {one.path.rpartition("/")[2]: one for one in model.optimizer.variables}
    return [own.get(one.path.rpartition("/")[2], one) for one in first]


def _value(variable: Any) -> Any:
    return tf.convert_to_tensor(variable.value).numpy()


def _dtype(variable: Any) -> Any:
    return tf.as_dtype(variable.dtype)
