"""A straight line through measured peaks: peak = base + slope · batch.

Robust: one odd run moves neither base nor slope much. Never bends: a peak does not fall when the
batch grows, and no part of it is negative.
"""

import statistics
from collections.abc import Sequence
from itertools import combinations

from msgspec import Struct

from sublet.domain.history import Point

MOST_REACH = 8.0
"""A line is not followed further than so many times the largest batch seen."""


class LinearFit(Struct, frozen=True):
    """A fit, and how well the points lie on it."""

    base: int
    slope: float
    """Bytes for each item of the batch."""
    spread: float
    """How far points usually lie from the line, as a share of it."""
    points: int
    smallest: float
    largest: float

    def at(self, batch: float) -> int:
        """The peak that the line expects at this batch size."""
        return int(self.base + self.slope * batch)

    def reach(self, batch: float) -> float:
        """How far outside of what was seen a batch lies: 0 within, 1 at twice the largest.

        Below the smallest the peak is at least known not to be larger, so that counts little.
        """
        above = batch / self.largest - 1
        below = (self.smallest - batch) / self.smallest
        return max(0.0, above, below / 4)


def fit(points: Sequence[Point]) -> LinearFit | None:
    """The line of Theil and Sen: the median of the slopes between all pairs of points.

    None where fewer than two batch sizes were seen.
    """
    slopes = [
        (two.peak - one.peak) / (two.batch - one.batch)
        for one, two in combinations(points, 2)
        if one.batch != two.batch
    ]
    if not slopes:
        return None
    slope = max(0.0, statistics.median(slopes))
    base = statistics.median(point.peak - slope * point.batch for point in points)
    if base < 0:
        base, slope = 0.0, statistics.median(point.peak / point.batch for point in points)
    return LinearFit(
        base=int(base),
        slope=slope,
        spread=spread([(point.peak, base + slope * point.batch) for point in points]),
        points=len(points),
        smallest=min(point.batch for point in points),
        largest=max(point.batch for point in points),
    )


def spread(pairs: Sequence[tuple[float, float]]) -> float:
    """How far values usually lie from what was expected, as a share: a deviation that one odd
    value among several does not change (1.48 times the median is the standard deviation of a bell
    curve)."""
    return 1.48 * statistics.median(abs(seen - due) / max(due, 1.0) for seen, due in pairs)
