"""What a training is between two epochs: weights and the optimizer's variables, as NumPy arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..optimizer_variables import variables_of

State = list[np.ndarray[Any, Any]]


class Kept(NamedTuple):
    """A trial between two rungs."""

    epochs: int
    """How many it has trained."""
    state: State
    copied: bool = False
    """Whether it is the state of another trial, whose numbers are not those of this one."""


def take(model: Any) -> State:
    """All variables of a model and of its optimizer."""
    return [np.asarray(one) for one in _variables(model)]


def put(model: Any, state: State) -> None:
    """Give a model the variables of another one of its kind."""
    variables = _variables(model)
    if [one.shape for one in state] != [tuple(one.shape) for one in variables]:
        raise ValueError("the state is that of another model")
    for variable, value in zip(variables, state, strict=True):
        variable.assign(value)


def weights(model: Any) -> State:
    """The weights alone, as `get_weights` has them."""
    return [np.asarray(one) for one in model.get_weights()]


def _variables(model: Any) -> list[Any]:
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    return [*model.variables, *variables_of(model.optimizer)]
