"""What a search says next: a rung, in which trials train up to an epoch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sublet.sweeps.records import Params, Trial


@dataclass(frozen=True)
class Copy:
    """`target` goes on with the weights of `source` and these parameters."""

    source: int
    target: int
    params: Params


@dataclass(frozen=True)
class Rung:
    """New trials begin and others go on, all up to epoch `until`. Any other trial that is not over
    is pruned. Copies are made first."""

    until: int
    new: tuple[Params, ...] = ()
    go_on: tuple[int, ...] = ()
    copies: tuple[Copy, ...] = ()


class Search(Protocol):
    """Decides from the trials so far alone: asked again with the same trials, it says the same. So
    a sweep that was killed goes on as if nothing had happened."""

    @property
    def name(self) -> str:
        """How it is called in journals and tables."""

    @property
    def work(self) -> int:
        """The epochs of all trials together, at most: for estimates."""

    def next(self, trials: Sequence[Trial]) -> Rung | None:
        """The next rung; None if nothing is left. All trials of the last one have ended it."""


def alive(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that can go on."""
    return [trial for trial in trials if not trial.over]
