"""Which batches answer fastest: a search that changes one thing at a time. Pure but for `measure`.

It proposes; `verdict` decides, as a search that looks at many settings finds a lucky one, too.
"""

from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from sublet.inside.serving.options import powers
from sublet.serving.measuring.figures import Figures
from sublet.serving.measuring.setting import Setting

WAITS = (0, 100, 500, 2_000, 10_000)
"""Microseconds."""
_LARGEST = 1024
_MARGIN = 1.03
"""How much better a setting has to be to be gone on from."""


class Trial(Struct, frozen=True):
    """A setting, and what it gave."""

    setting: Setting
    figures: Figures


class Goal(Struct, frozen=True):
    """The most requests per second; with a target, of those whose p99 is below it."""

    target: float | None = None

    def met(self, figures: Figures) -> bool:
        return self.target is None or figures.p99 <= self.target

    def better(self, one: Figures, other: Figures, margin: float = _MARGIN) -> bool:
        """Whether `one` is clearly better than `other`."""
        if self.met(one) != self.met(other):
            return self.met(one)
        if self.met(one):
            return one.rate > margin * other.rate
        return margin * one.p99 < other.p99


class Search:
    """`measure` measures a setting, each only once."""

    def __init__(
        self, measure: Callable[[Setting], Awaitable[Figures]], goal: Goal, at_once: int
    ) -> None:
        self.trials: list[Trial] = []
        """In their order; the first is that of the defaults."""
        self._measure = measure
        self._goal = goal
        self._at_once = at_once
        """Rows that can wait at the same time: more are never in a batch."""

    async def run(self) -> Trial:
        """The best that was found."""
        best = await self._try(Setting())
        sizes = powers(min(self._at_once, _LARGEST))
        best = await self._climb(best, [replace(best.setting, largest=size) for size in sizes])
        waits = [wait for wait in WAITS if self._bearable(wait)]
        best = await self._climb(best, [replace(best.setting, micros=wait) for wait in waits])
        if best.setting.micros:
            # A batch that waits had better be one that gets full.
            best = await self._climb(best, [replace(best.setting, largest=size) for size in sizes])
        if best.setting.largest > 2:
            best = await self._climb(best, [replace(best.setting, padded=True)])
        return best

    def _bearable(self, micros: int) -> bool:
        return self._goal.target is None or micros * 1e-6 <= self._goal.target / 2

    async def _climb(self, best: Trial, ladder: Sequence[Setting]) -> Trial:
        """From where it stands, up or down the ladder for as long as that helps."""
        settings = [trial.setting for trial in self.trials]
        ways: tuple[Sequence[Setting], ...] = (ladder[::-1],)
        if best.setting in ladder:
            start = ladder.index(best.setting)
            ways = (ladder[start + 1 :], ladder[:start][::-1])
        for way in ways:
            found = best
            misses = 0
            for setting in way:
                known = setting in settings
                trial = await self._try(setting)
                if self._goal.better(trial.figures, found.figures):
                    found, misses = trial, 0
                elif not known:
                    misses += 1
                # One rung may be a bad one; two say that the top was passed.
                if misses == 2:
                    break
            if found is not best:
                return found
        return best

    async def _try(self, setting: Setting) -> Trial:
        for trial in self.trials:
            if trial.setting == setting:
                return trial
        trial = Trial(setting, await self._measure(setting))
        self.trials.append(trial)
        return trial
