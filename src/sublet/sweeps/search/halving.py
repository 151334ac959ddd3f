"""Successive halving: all trials train a little, the best third of them three times as long, and so
on; the last ones train to the end (Jamieson and Talwalkar, 2016)."""

from collections.abc import Sequence
from dataclasses import dataclass

from sublet.sweeps.records import Mode, Params, Trial, rank
from sublet.sweeps.search.rung import Rung, alive


@dataclass(frozen=True)
class Halving:
    """Of `n` trials, `n / eta` survive each rung; each ends `eta` times as late as the last."""

    params: tuple[Params, ...]
    epochs: int
    mode: Mode
    eta: int = 3
    first: int = 1
    """Epochs of the first rung."""
    name: str = "halving"

    @property
    def ends(self) -> list[int]:
        """The epochs at which losers leave, and the last one."""
        ends, until = [], self.first
        survivors = len(self.params)
        while until < self.epochs and survivors > 1:
            ends.append(until)
            until *= self.eta
            survivors = self._survivors(survivors)
        return [*ends, self.epochs]

    @property
    def work(self) -> int:
        total, before, count = 0, 0, len(self.params)
        for end in self.ends:
            total += count * (end - before)
            before, count = end, self._survivors(count)
        return total

    def next(self, trials: Sequence[Trial]) -> Rung | None:
        if not trials:
            return Rung(self.ends[0], new=self.params)
        running = alive(trials)
        if not running:
            return None
        reached = max(trial.epochs for trial in running)
        until = next((end for end in self.ends if end > reached), None)
        if until is None:
            return None
        # The rungs' sizes count from all trials: whoever has ended by itself leaves no place free.
        allowed = len(self.params)
        for end in self.ends:
            if end <= reached:
                allowed = self._survivors(allowed)
        best = rank(running, self.mode)[:allowed]
        return Rung(until, go_on=tuple(sorted(trial.number for trial in best)))

    def _survivors(self, count: int) -> int:
        return max(1, count // self.eta)
