"""Population based training: at times, the worst trials take over the weights of the best, and go
on with parameters near theirs (Jaderberg and others, 2017)."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sublet.sweeps.records import Mode, Params, Trial, rank
from sublet.sweeps.search.rung import Copy, Rung, alive
from sublet.sweeps.space import Domain, Space

_RESAMPLED = 0.25
"""How often a parameter is drawn anew instead of being changed a little."""
_KEPT = ("seed",)
"""A parameter that is no better or worse than another value of it."""


@dataclass(frozen=True)
class Population:
    """Every `every` epochs the worst `share` of the trials copy trials of the best `share`."""

    params: tuple[Params, ...]
    space: Space
    epochs: int
    mode: Mode
    seed: int = 0
    every: int = 1
    share: float = 0.25
    name: str = "pbt"

    @property
    def work(self) -> int:
        return len(self.params) * self.epochs

    def next(self, trials: Sequence[Trial]) -> Rung | None:
        if not trials:
            return Rung(min(self.every, self.epochs), new=self.params)
        running = alive(trials)
        if not running:
            return None
        reached = max(trial.epochs for trial in running)
        if reached >= self.epochs:
            return None
        numbers = tuple(trial.number for trial in running)
        until = min(reached + self.every, self.epochs)
        return Rung(until, go_on=numbers, copies=tuple(self._copies(running, reached)))

    def _copies(self, running: Sequence[Trial], epoch: int) -> list[Copy]:
        ranked = rank(running, self.mode)
        count = min(int(len(ranked) * self.share) or 1, len(ranked) // 2)
        draw = random.Random(f"{self.seed} {epoch}")
        copies = []
        for loser in ranked[len(ranked) - count :]:
            winner = draw.choice(ranked[:count])
            copies.append(Copy(winner.number, loser.number, self._near(winner.params, draw)))
        return copies

    def _near(self, params: Params, draw: random.Random) -> Params:
        changed = dict(params)
        for name, domain in self.space.domains.items():
            if name not in _KEPT:
                changed[name] = _near(domain, params[name], draw)
        return changed


def _near(domain: Domain, value: Any, draw: random.Random) -> Any:
    """A value near this one, within the domain."""
    if draw.random() < _RESAMPLED:
        return domain.at(draw.random())
    if domain.values is not None:
        values = list(domain.values)
        place = values.index(value) if value in values else 0
        return values[min(max(place + draw.choice((-1, 1)), 0), len(values) - 1)]
    low, high = domain.at(0.0), domain.at(1.0)
    # An integer stays one.
    return min(max(type(low)(value * draw.choice((0.8, 1.2))), low), high)
