"""The ways to train models of one architecture in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..stacks import checks
from ..stacks.batches import Batches, Chunk
from ..stacks.group import serial as one_by_one
from ..stacks.group import stacks
from ..stacks.trainer import CannotStack, Logs, Trainer

Make = Callable[[list[Any], Chunk], Trainer]
"""Makes a trainer of models; the chunk is one such as those that it will get."""


def serial(models: list[Any], chunk: Chunk) -> Trainer:
    """One after the other; a cohort of such models has one."""
    try:
        checks.check(models)
    except CannotStack:
        (model,) = models
        return Fit(model)
    return one_by_one(models)


def fused(most: int | None = None) -> Make:
    """As one, or in stacks of `most`; raises CannotStack for models that do not allow that."""
    return lambda models, chunk: stacks(models, chunk, most)


class Fit:
    """A Trainer of one model whose class or settings only Keras' own `fit` knows how to train: of
    the program's own, with a `train_step` of its own, or run eagerly."""

    def __init__(self, model: Any) -> None:
        self.models: Sequence[Any] = (model,)

    def train_epoch(self, batches: Batches) -> list[Logs]:
        history = self.models[0].fit(**batches.arguments, shuffle=False, verbose=0).history
        return [{name: float(values[-1]) for name, values in history.items()}]

    def evaluate(self, batches: Batches) -> list[Logs]:
        metrics = self.models[0].evaluate(**batches.arguments, verbose=0, return_dict=True)
        return [{name: float(value) for name, value in metrics.items()}]

    def keep(self, places: Sequence[int]) -> None:
        pass

    def copy(self, source: int, target: int) -> None:
        pass

    def numbers(self, place: int) -> dict[str, float]:
        return {}

    def set(self, place: int, name: str, value: float) -> None:
        """Nothing to do: callbacks have set it in the model."""

    def write_back(self, whole: bool = True) -> None:
        """Nothing to do: the model is trained itself."""
