"""Trains models one after the other, by Keras' own `fit`: the way that every model can go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import state


class Serial:
    """Several models, each trained by itself. The order of `models` is that of their places."""

    def __init__(self, models: Sequence[Any]) -> None:
        self.models = list(models)

    def train_epoch(self, batches: Any) -> list[dict[str, float]]:
        """Train each model with these batches; its metrics."""
        found = []
        for model in self.models:
            history = model.fit(batches, epochs=1, shuffle=False, verbose=0).history
            found.append({name: float(values[-1]) for name, values in history.items()})
        return found

    def evaluate(self, batches: Any) -> list[dict[str, float]]:
        """The metrics of each model on these batches."""
        found = []
        for model in self.models:
            metrics = model.evaluate(batches, verbose=0, return_dict=True)
            found.append({name: float(value) for name, value in metrics.items()})
        return found

    def keep(self, places: Sequence[int]) -> None:
        """The others leave."""
        self.models = [self.models[place] for place in places]

    def copy(self, source: int, target: int) -> None:
        """Give one model the weights and the optimizer's state of another."""
        state.put(self.models[target], state.take(self.models[source]))

    def set(self, place: int, name: str, value: float) -> None:
        """Set a number of a model's optimizer."""
        current = getattr(self.models[place].optimizer, name)
        if hasattr(current, "assign"):
            current.assign(value)
        else:
            setattr(self.models[place].optimizer, name, value)

    def write_back(self) -> None:
        """Nothing to do: the models are trained themselves."""
