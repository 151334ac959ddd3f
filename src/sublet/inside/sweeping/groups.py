"""Trials of the same architecture, and how they are trained: as one, packed, or in turn."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from ..training.refused import Refused
from . import state, ways
from .building import shapes
from .cohort import Cohort, Member
from .data import Data
from .local import Local
from .state import State


@dataclass(frozen=True)
class Choice:
    """How a group is trained, and why so."""

    way: str
    why: str
    parts: tuple[tuple[int, ...], ...] = ()
    """The trials that train as one; of a way that is not fused, single ones."""
    make: Callable[[list[Any]], Any] = ways.serial


class Names:
    """Gives each group a short name that no other has."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def of(self, model: Any) -> str:
        """What a model is: its kind and the number of its weights."""
        name = f"{type(model).__name__} {model.count_params():,}"
        self._given[name] = count = self._given.get(name, 0) + 1
        return name if count == 1 else f"{name} ({count})"


def key(model: Any) -> Hashable:
    """Equal for models of the same architecture."""
    return type(model).__name__, tuple(shapes(model)), type(model.optimizer).__name__


def choose(local: Local, numbers: Sequence[int], data: Data, way: str) -> Choice:
    """The way for trials of one architecture, which are built. Raises Refused if the way that was
    asked for cannot be gone."""
    single = tuple((number,) for number in numbers)
    if way == "serial":
        return Choice("serial", "it was asked for", single)
    if way == "fused":
        raise Refused("Nothing can be fused.", 'Use way="auto".')
    if len(numbers) > 1 and data.sendable:
        return Choice("packed", "several at a time")
    return Choice("serial", "", single)


def train_alone(local: Local, trial: Any, epochs: int) -> State:
    """The weights of a trial, which has `params`, after it was trained by itself."""
    model = local.model(trial.params)
    alone = Cohort([Member(trial.number, model)], local.data, ways.serial)
    alone.train(epochs, lambda *_: None)
    return state.weights(model)


def difference(first: State, second: State) -> float:
    """The largest difference between weights."""
    pairs = zip(first, second, strict=True)
    return max((float(abs(a - b).max()) for a, b in pairs if a.size), default=0.0)
