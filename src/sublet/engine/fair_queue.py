"""Whose turn it is: weighted fairness over the time that batches really take.

Start-time fair queueing. Each model has a tag, the virtual time at which its next batch starts:
when its last one was charged, or now, if it came back from having nothing to do. The lowest tag
goes next, and a batch moves its model's tag by the seconds it took, divided by the model's weight.
So a model that is flooded gets what the others leave, and one with little to do waits for one
batch, not for a queue. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

Turn = tuple[str, float]


class FairQueue:
    """The tags of all models. Only differences between tags mean anything."""

    def __init__(self) -> None:
        self._now = 0.0
        """The tag of the batch that began last."""
        self._tags: dict[str, float] = {}

    def choose(self, waiting: Iterable[tuple[str, float]]) -> str:
        """Of these models, each with the time since when its batch is due, the next."""
        return min(waiting, key=lambda one: (max(self._now, self._tags.get(one[0], 0.0)), one[1]))[
            0
        ]

    def ahead(self, model: str, other: str, seconds: float) -> bool:
        """Whether a model has had more than the other, whose last batch counts for so long."""
        return self._tags.get(model, 0.0) > self._tags.get(other, 0.0) - seconds

    def begin(self, model: str, seconds: float, weight: float) -> Turn:
        """Its batch begins, and will take about so long; give the result to `end`."""
        start = max(self._now, self._tags.get(model, 0.0))
        self._now = start
        self._tags[model] = start + seconds / weight
        return model, seconds

    def end(self, turn: Turn, seconds: float, weight: float) -> None:
        """It took so long."""
        model, expected = turn
        if model in self._tags:
            self._tags[model] += (seconds - expected) / weight

    def forget(self, model: str) -> None:
        """It is not served any more."""
        self._tags.pop(model, None)
