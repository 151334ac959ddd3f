"""Which batches of an engine do not end, and have to be ended. Pure: no clock, no engine.

A batch may take as long as it likes while nobody needs its place. If it holds others up, it has to
be one that somebody still waits for, or that is done about when such batches are. Else the model is
interrupted: TensorFlow gives up the batch, and the model is loaded anew. What does not even end
then is hung, and the engine has to be replaced.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sublet.engine.fair_queue import BatchProgress

_USUAL = 3.0
"""Times what batches of a model take as a rule: so long one may take that nobody waits for."""


class Patience(NamedTuple):
    """How long the server waits for others, in seconds."""

    process: float = 30.0
    """For an engine or a front end that gives no sign of life; 0: for ever."""
    batch: float = 600.0
    """For a batch that somebody waits for, and that holds up others."""

    @property
    def beat(self) -> float:
        """Seconds between two questions, and for the answer to one."""
        return min(1.0, self.process / 10)


class Findings(NamedTuple):
    """What to do about the batches of an engine."""

    interrupt: tuple[BatchProgress, ...]
    hung: tuple[BatchProgress, ...]  # They were interrupted before, and it did not help.
    stalled: bool
    """Whether the engine begins nothing for so long that callers give up."""


class Watchdog:
    """Watches the batches of one engine. Times are seconds of the caller's clock."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._soon = patience.process / 3  # Seconds to wait before each step.
        self._unwanted: dict[int, float] = {}  # Since when nobody waits for a batch.
        self._interrupted: dict[int, float] = {}

    def judge(self, runs: Sequence[BatchProgress], now: float) -> Findings:
        """Judge all batches that run; called at every beat."""
        there = {run.number for run in runs}
        unwanted = {run.number: now for run in runs if not run.wanted}
        self._unwanted = {n: self._unwanted.get(n, since) for n, since in unwanted.items()}
        self._interrupted = {n: t for n, t in self._interrupted.items() if n in there}
        hung = tuple(run for run in runs if self._is_hung(run, now))
        overdue = tuple(
            run
            for run in runs
            if run.number not in self._interrupted and self._is_overdue(run, now)
        )
        self._interrupted |= {run.number: now for run in overdue}
        stalled = any(run.holds_up >= self._patience.process for run in runs)
        return Findings(overdue, hung, stalled)

    def _is_overdue(self, run: BatchProgress, now: float) -> bool:
        since = self._unwanted.get(run.number, now)
        harms = run.holds_up >= self._soon
        too_long = run.seconds >= self._patience.batch
        if run.wanted or now - since < self._soon:
            return harms and too_long
        return (harms or too_long) and run.seconds >= _USUAL * run.expected

    def _is_hung(self, run: BatchProgress, now: float) -> bool:
        since = self._interrupted.get(run.number, now)
        return run.holds_up >= self._soon and now - since >= self._soon
