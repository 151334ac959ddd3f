"""Whether a setting is better than the defaults, from rounds in which they took turns. Pure.

The two of a pair are measured right after each other, and which of them is first changes from pair
to pair: what drifts (the clock of the processor, other programs) hits both alike.
"""

import math
import statistics
from collections.abc import Callable, Sequence

from msgspec import Struct

from sublet.serving.client.engine import Engine
from sublet.tools.loadtest.figures import Figures
from sublet.tools.loadtest.load import Load
from sublet.tools.loadtest.search import Goal
from sublet.tools.loadtest.setting import Setting
from sublet.tools.loadtest.subject import NAME, LocalModel
from sublet.tools.loadtest.tables import span

PAIRS = 10
_T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
"""Student's t for 95 %, two-sided, by degrees of freedom."""
_NOISY = 0.1
_LEAST = 0.02
"""A smaller gain is not worth a file that somebody has to keep."""


class Change(Struct, frozen=True):
    """How a figure changed, as a share of what it was; beyond `noise` it is real."""

    gain: float
    noise: float

    @property
    def real(self) -> bool:
        return abs(self.gain) > self.noise and abs(self.gain) >= _LEAST


class TrialVerdict(Struct, frozen=True):
    """The outcome of the comparison."""

    suggested: bool
    reason: str
    rate: Change
    p99: Change


def judge(pairs: Sequence[tuple[Figures, Figures]], goal: Goal) -> TrialVerdict:
    """Judge pairs of measurements: of the defaults, and of the setting."""
    rate = _change([(before.rate, after.rate) for before, after in pairs])
    p99 = _change([(before.p99, after.p99) for before, after in pairs])
    gains = f"{rate.gain:+.1%} requests/s (noise ±{rate.noise:.1%})"
    if goal.target is not None:
        first, second = ([pair[local].p99 for pair in pairs] for local in (0, 1))
        before, after = statistics.median(first), statistics.median(second)
        target = span(goal.target)
        if after > goal.target:
            text = f"its p99 is {span(after)}, above the target of {target}"
            return TrialVerdict(False, text, rate, p99)
        if before > goal.target:
            text = f"p99 is {span(after)} instead of {span(before)}, and meets {target}"
            if not p99.real:
                return TrialVerdict(False, f"{text}, but the rounds differ as much", rate, p99)
            return TrialVerdict(True, text, rate, p99)
    if not rate.real:
        quiet = "; give it more --time, or a quieter machine" if rate.noise > _NOISY else ""
        return TrialVerdict(False, f"{gains}: within noise{quiet}", rate, p99)
    return TrialVerdict(rate.gain > 0, gains, rate, p99)


def _change(pairs: Sequence[tuple[float, float]]) -> Change:
    """By the ratios, whose logarithms are as likely to be above the truth as below it."""
    ratios = [math.log(after / before) for before, after in pairs]
    free = len(ratios) - 1
    error = statistics.stdev(ratios) / math.sqrt(len(ratios)) if free else math.inf
    return Change(math.expm1(statistics.fmean(ratios)), math.expm1(_T.get(free, 2.26) * error))


class Trials:
    """Measures one model under one load. A trial is four measurements, of `most` seconds
    together."""

    def __init__(
        self, engine: Engine, local: LocalModel, load: Load, concurrency: int, most: float
    ) -> None:
        self._client = engine.worker.client
        self._local = local
        self._load = load
        self._concurrency = concurrency
        self._most = most

    async def measure(self, setting: Setting) -> Figures:
        self._apply(setting)
        return await self._load.step(self._concurrency, self._most / 4)

    async def compare(
        self, setting: Setting, on_pair: Callable[[int], None] = lambda pair: None
    ) -> list[tuple[Figures, Figures]]:
        """Rounds of the defaults and of this setting, one after the other, in turns."""
        pairs = []
        for pair in range(PAIRS):
            on_pair(pair)
            order = [Setting(), setting]
            found = {}
            for one in order if pair % 2 == 0 else order[::-1]:
                self._apply(one)
                found[one] = await self._load.step(
                    self._concurrency, self._most / 4, until_stable=False
                )
            pairs.append((found[Setting()], found[setting]))
        return pairs

    def _apply(self, setting: Setting) -> None:
        self._client.ask(
            {
                "ask": "add",
                "model": NAME,
                "version": self._local.version,
                "path": str(self._local.path.absolute()),
                "options": setting.options(),
            }
        )
