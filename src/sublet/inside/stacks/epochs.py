"""Epochs, for whoever can take chunks."""

from __future__ import annotations

from typing import Any

from .batches import Batches, Chunk
from .trainer import Logs


class Epochs:
    """Passes over data; what is done with a chunk is its subclass's."""

    def train_epoch(self, batches: Batches) -> list[Logs]:
        """Train all models for one epoch. Returns the logs of each, as `fit` has them."""
        self.begin()
        for chunk in batches.epoch():
            self.train(chunk)
        return self.logs()

    def evaluate(self, batches: Batches) -> list[Logs]:
        """The logs of each model, as `evaluate` has them."""
        self.begin()
        for chunk in batches.epoch():
            self.test(chunk)
        return self.logs()

    def begin(self) -> None:
        """Begin an epoch: metrics count from here."""
        raise NotImplementedError

    def train(self, chunk: Chunk) -> None:
        """Take the steps of a chunk."""
        raise NotImplementedError

    def test(self, chunk: Chunk) -> None:
        """Evaluate the models with a chunk."""
        raise NotImplementedError

    def logs(self) -> list[Logs]:
        """What Keras tells of each model since `begin`."""
        raise NotImplementedError


def flat_logs(results: Any) -> Logs:
    """Keras' results by their names. A metric that has several gives each by its own name."""
    found: Logs = {}
    for name, value in results.items():
        inside = value if isinstance(value, dict) else {name: value}
        found |= {key: float(one) for key, one in inside.items()}
    return found
