"""The variables that a training changes, and those that a checkpoint has of them."""

from __future__ import annotations

import functools
import re
from typing import Any

from ...optimizer_variables import variables_of
from .directory import Checkpoint
from .values import Array

_NUMBER = re.compile(r"_\d+(?=[_/]|$)")
"""What Keras adds to a name that it has given before in the same program."""


def variables(model: Any) -> list[Any]:
    """Weights, moving statistics, random numbers of layers, the optimizer's, metrics."""
    found: dict[int, Any] = {}
    for one in (*model.variables, *variables_of(model.optimizer), *model.metrics_variables):
        found.setdefault(id(one), one)
    return list(found.values())


def described(model: Any) -> list[list[Any]]:
    """What a checkpoint says of the variables: name, shape and type of each."""
    return [
        [_NUMBER.sub("", one.path), list(one.shape), str(one.dtype)] for one in variables(model)
    ]


def values(model: Any, instead: dict[int, Any]) -> list[Array]:
    """The values, read when they are written down; those of `instead` (by the variable's `id`) are
    taken from there."""

    def read(one: Any) -> Any:
        return instead[id(one)] if id(one) in instead else one.value.numpy()

    return [functools.partial(read, one) for one in variables(model)]


def seeds(model: Any) -> dict[int, Any]:
    """The random numbers of layers as they are, by the `id` of their variables."""
    found = (one for one in model.variables if one.path.endswith("seed_generator_state"))
    return {id(one): one.value.numpy() for one in found}


def difference(saved: list[list[Any]], model: Any) -> str:
    """What is another variable here than in the checkpoint; empty if nothing is."""
    here = described(model)
    for (name, shape, kind), (own_name, own_shape, own_kind) in zip(saved, here, strict=False):
        if name != own_name:
            return f"it has {name!r} where this model has {own_name!r}"
        if shape != own_shape:
            return f"{name!r} is {tuple(shape)} there and {tuple(own_shape)} here"
        if kind != own_kind:
            return f"{name!r} is {kind} there and {own_kind} here"
    if len(saved) > len(here):
        return f"it has {saved[len(here)][0]!r}, which this model has not"
    if len(saved) < len(here):
        return f"this model has {here[len(saved)][0]!r}, which is not in it"
    return ""


def put_back(checkpoint: Checkpoint, model: Any) -> None:
    """Give all variables the values of the checkpoint."""
    for number, one in enumerate(variables(model)):
        one.assign(checkpoint.array(number))
