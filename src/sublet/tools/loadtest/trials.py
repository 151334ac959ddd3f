"""Settings tried on a real model: its engine is told each of them, and measured under load.

A setting is changed while the model stays in memory, so trials follow each other at once.
"""

from collections.abc import Callable

from sublet.serving.client.engine import Engine
from sublet.tools.loadtest.figures import Figures
from sublet.tools.loadtest.load import Load
from sublet.tools.loadtest.setting import Setting
from sublet.tools.loadtest.subject import NAME, Target
from sublet.tools.loadtest.verdict import PAIRS


class Trials:
    """Of one model, under one load. A trial is four measurements, of `most` seconds together."""

    def __init__(
        self, engine: Engine, place: Target, load: Load, concurrency: int, most: float
    ) -> None:
        self._line = engine.worker.line
        self._place = place
        self._load = load
        self._concurrency = concurrency
        self._most = most

    async def measure(self, setting: Setting) -> Figures:
        """What a setting gives."""
        self._apply(setting)
        return await self._load.step(self._concurrency, self._most / 4)

    async def compare(
        self, setting: Setting, told: Callable[[int], None] = lambda pair: None
    ) -> list[tuple[Figures, Figures]]:
        """Rounds of the defaults and of this setting, one after the other, in turns."""
        pairs = []
        for pair in range(PAIRS):
            told(pair)
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
        self._line.ask(
            {
                "ask": "add",
                "model": NAME,
                "version": self._place.version,
                "path": str(self._place.path.absolute()),
                "options": setting.options(),
            }
        )
