"""What a load has measured, in figures. Pure: no clock, no sockets.

Times are seconds. A window is a short stretch of a load; a step is measured once its last windows
agree with each other.
"""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

AGREEING = 3  # Windows that have to agree.
NEAR = 0.05
"""How far each of them may be from their mean."""


class Call(NamedTuple):
    latency: float
    queued: float = 0.0
    computed: float = 0.0
    batch: int = 0
    """Rows of the batch that it was in; 0 if nobody says."""


class Window(NamedTuple):
    """A stretch of a load."""

    seconds: float
    calls: Sequence[Call]

    @property
    def rate(self) -> float:
        return len(self.calls) / self.seconds

    def quantile(self, share: float) -> float:
        return quantile(sorted(call.latency for call in self.calls), share)


class Figures(Struct, frozen=True):
    """One step: so many calls at once."""

    concurrency: int
    requests: int  # Answered.
    failed: int
    seconds: float
    stable: bool
    """Whether its last windows agreed, or its time was over."""
    rate: float  # Requests in a second.
    rows: float  # Rows in a second.
    mean: float
    p50: float
    p95: float
    p99: float
    queued: float | None
    """Mean until the batch of a call began; None if the server does not tell."""
    computed: float | None  # Mean that the batch of a call took.
    batch: float | None  # Mean rows of a batch.
    error: str = ""  # The error of the last call that failed.

    @property
    def rest(self) -> float | None:
        """Mean of what is neither queue nor computing: the way there and back."""
        if self.queued is None or self.computed is None:
            return None
        return max(0.0, self.mean - self.queued - self.computed)


def figures(
    concurrency: int,
    rows: int,
    windows: Sequence[Window],
    failed: int = 0,
    stable: bool = True,
    error: str = "",
) -> Figures:
    """The figures of these windows, of calls with so many rows each."""
    calls = [call for window in windows for call in window.calls]
    if not calls:
        raise ValueError("no call was answered")
    seconds = sum(window.seconds for window in windows)
    ordered = sorted(call.latency for call in calls)
    split = all(call.batch for call in calls)
    return Figures(
        concurrency=concurrency,
        requests=len(calls),
        failed=failed,
        seconds=seconds,
        stable=stable,
        rate=len(calls) / seconds,
        rows=len(calls) * rows / seconds,
        mean=statistics.fmean(ordered),
        p50=quantile(ordered, 0.5),
        p95=quantile(ordered, 0.95),
        p99=quantile(ordered, 0.99),
        queued=statistics.fmean(call.queued for call in calls) if split else None,
        computed=statistics.fmean(call.computed for call in calls) if split else None,
        # Each call is a part of its batch; the parts add up to the number of batches.
        batch=len(calls) / math.fsum(1 / call.batch for call in calls) if split else None,
        error=error,
    )


def both(one: Figures, other: Figures) -> Figures:
    """Two measurements of the same as one: the means of their figures."""
    means = {
        name: (getattr(one, name) + getattr(other, name)) / 2
        for name in ("rate", "rows", "mean", "p50", "p95", "p99", "queued", "computed", "batch")
        if getattr(one, name) is not None and getattr(other, name) is not None
    }
    return replace(
        one,
        requests=one.requests + other.requests,
        failed=one.failed + other.failed,
        seconds=one.seconds + other.seconds,
        stable=one.stable and other.stable,
        error=other.error or one.error,
        **means,
    )


def settled(windows: Sequence[Window]) -> bool:
    """Whether throughput and p95 of the last windows are near their means. The very first window
    does not count: caches, threads and clocks are cold in it."""
    if len(windows) < AGREEING + 1:
        return False
    last = windows[-AGREEING:]
    return _near([one.rate for one in last]) and _near([one.quantile(0.95) for one in last])


def chosen(windows: Sequence[Window]) -> tuple[Sequence[Window], bool]:
    """The windows that a step is made of, and whether they agree."""
    if settled(windows):
        return windows[-AGREEING:], True
    return windows[1:] or windows, False


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _near(values: Sequence[float]) -> bool:
    mean = statistics.fmean(values)
    return all(abs(value - mean) <= NEAR * mean for value in values)
