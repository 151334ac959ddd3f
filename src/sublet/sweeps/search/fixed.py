"""Searches that know all of their trials at the start: the grid, and samples by chance."""

from collections.abc import Sequence
from dataclasses import dataclass

from sublet.sweeps.records import Params, Trial
from sublet.sweeps.search.rung import Rung


@dataclass(frozen=True)
class Fixed:
    """Trains each of these to its end."""

    name: str
    params: tuple[Params, ...]
    epochs: int

    @property
    def work(self) -> int:
        return len(self.params) * self.epochs

    def next(self, trials: Sequence[Trial]) -> Rung | None:
        return Rung(self.epochs, new=self.params) if not trials else None
