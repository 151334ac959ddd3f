"""What trains several models: as one, or one after the other. Needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .batches import Batches

Logs = dict[str, float]
"""What Keras tells of one model after an epoch: its loss and its metrics."""


def flat_logs(results: Any) -> Logs:
    """Keras' results by their names. A metric that has several gives each by its own name."""
    found: Logs = {}
    for name, value in results.items():
        inside = value if isinstance(value, dict) else {name: value}
        found |= {key: float(one) for key, one in inside.items()}
    return found


class CannotStack(Exception):
    """Says which layer keeps models from being trained as one, and why, in words for the user."""

    def __init__(self, layer: str, why: str) -> None:
        super().__init__(f"{layer}: {why}" if layer else why)
        self.layer = layer
        """Its name; that of the model if no layer is the reason."""
        self.why = why


class Trainer(Protocol):
    """Trains models of one architecture with the same batches."""

    @property
    def models(self) -> Sequence[Any]:
        """Those still in it, by their places. Their own variables are old until `write_back`."""

    def train_epoch(self, batches: Batches) -> list[Logs]:
        """Train all models for one epoch. Returns the logs of each, as `fit` has them."""

    def evaluate(self, batches: Batches) -> list[Logs]:
        """The logs of each model, as `evaluate` has them."""

    def keep(self, places: Sequence[int]) -> None:
        """Go on with these models alone, in this order. The others leave with their weights."""

    def copy(self, source: int, target: int) -> None:
        """Give one model the weights and the optimizer's state of another. Its numbers (learning
        rate and such) and its random numbers stay its own."""

    def set(self, place: int, name: str, value: float) -> None:
        """Change a number of one model: a name out of `numbers`."""

    def numbers(self, place: int) -> dict[str, float]:
        """The numbers of one model that `set` can change: of its optimizer by their own names
        (`learning_rate`), of layers after the layer's (`dropout.rate`)."""

    def write_back(self, whole: bool = True) -> None:
        """Make all models as if each had been trained alone: weights, statistics, random numbers,
        and, if they are to be `whole`, optimizers, which takes longer. What is written stays."""
