"""One model, trained by Keras' own `fit`: the way that every model can go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .data import Data


class Fit:
    """A model whose class or settings only `fit` knows how to train: of the program's own, with a
    `train_step` of its own, or run eagerly."""

    def __init__(self, model: Any) -> None:
        self.models: Sequence[Any] = (model,)

    def fit_epoch(self, data: Data, epoch: int) -> list[dict[str, float]]:
        """Train an epoch, counted from 1; the metrics."""
        history = self.models[0].fit(**data.fit_arguments(epoch), verbose=0).history
        return [{name: float(values[-1]) for name, values in history.items()}]

    def fit_validation(self, data: Data) -> list[dict[str, float]]:
        """The metrics on the data for validation."""
        metrics = self.models[0].evaluate(**data.evaluate_arguments(), verbose=0, return_dict=True)
        return [{name: float(value) for name, value in metrics.items()}]

    def set(self, place: int, name: str, value: float) -> None:
        """Nothing to do: callbacks have set it in the model."""

    def write_back(self) -> None:
        """Nothing to do: the model is trained itself."""
