"""Which batches answer fastest: a search that changes one thing at a time. Pure but for `measure`.

It proposes; `verdict` decides, as a search that looks at many settings finds a lucky one, too.
"""

from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from sublet.engine.model_options import powers
from sublet.tools.loadtest.figures import Figures, both
from sublet.tools.loadtest.setting import Setting

WAITS = (0, 100, 500, 2_000, 10_000)  # Microseconds.
_LARGEST = 1024
_MARGIN = 1.03
"""How much better a setting has to be to be gone on from."""


class Trial(Struct, frozen=True):
    """A setting, what it gave, and what the best one until then gave around it."""

    setting: Setting
    figures: Figures
    before: Figures | None = None

    @property
    def gain(self) -> float | None:
        """The change in requests per second, as a share."""
        return None if self.before is None else self.figures.rate / self.before.rate - 1


class Goal(Struct, frozen=True):
    """The most requests per second; with a target, of those whose p99 is below it."""

    target: float | None = None

    def met(self, figures: Figures) -> bool:
        return self.target is None or figures.p99 <= self.target

    def better(self, one: Figures, other: Figures) -> bool:
        """Whether `one` is clearly better than `other`."""
        if self.met(one) != self.met(other):
            return self.met(one)
        if self.met(one):
            return one.rate > _MARGIN * other.rate
        return _MARGIN * one.p99 < other.p99


class Search:
    """Each setting is measured between two measurements of the best one until then, never against
    an old figure: a machine that gets slower would make the first ones look best. `on_trial` is
    called with each trial."""

    def __init__(
        self,
        measure: Callable[[Setting], Awaitable[Figures]],
        goal: Goal,
        at_once: int,
        on_trial: Callable[[Trial], None] = lambda trial: None,
    ) -> None:
        self.trials: list[Trial] = []
        """In their order; the first is that of the defaults."""
        self._measure = measure
        self._goal = goal
        self._at_once = at_once
        """Rows that can wait at the same time: more are never in a batch."""
        self._on_trial = on_trial

    async def run(self) -> Setting:
        """Find the best setting."""
        best = Setting()
        self._note(Trial(best, await self._measure(best)))
        sizes = powers(min(self._at_once, _LARGEST))
        best = await self._climb(best, [replace(best, largest=size) for size in sizes])
        waits = [replace(best, micros=wait) for wait in WAITS if self._bearable(wait)]
        # A short wait may cost and a long one pay: all of them are tried.
        best = await self._climb(best, waits, patience=len(waits))
        if best.micros:
            # A batch that waits had better be one that gets full.
            best = await self._climb(best, [replace(best, largest=size) for size in sizes])
        if best.largest > 2:
            best = await self._climb(best, [replace(best, padded=True)])
        return best

    def _bearable(self, micros: int) -> bool:
        return self._goal.target is None or micros * 1e-6 <= self._goal.target / 2

    async def _climb(self, best: Setting, ladder: Sequence[Setting], patience: int = 2) -> Setting:
        """Go up or down the ladder as long as that helps: one bad rung may be chance, two mean
        that the top was passed."""
        ways: tuple[Sequence[Setting], ...] = (ladder[::-1],)
        if best in ladder:
            start = ladder.index(best)
            ways = (ladder[start + 1 :], ladder[:start][::-1])
        for way in ways:
            found, misses = best, 0
            for setting in way:
                if await self._is_better(setting, found):
                    found, misses = setting, 0
                else:
                    misses += 1
                if misses == patience:
                    break
            if found != best:
                return found
        return best

    async def _is_better(self, setting: Setting, best: Setting) -> bool:
        if any(trial.setting == setting for trial in self.trials):
            return False  # It was tried, and something else was better.
        # The best one, the new one twice, the best one: what drifts hits both alike.
        first, second, third, fourth = [
            await self._measure(one) for one in (best, setting, setting, best)
        ]
        before, after = both(first, fourth), both(second, third)
        self._note(Trial(setting, after, before))
        return self._goal.better(after, before)

    def _note(self, trial: Trial) -> None:
        self.trials.append(trial)
        self._on_trial(trial)
