"""Small statistics, and how figures are written."""

import random
import statistics
from collections.abc import Sequence


def median(values: Sequence[float]) -> float:
    """The middle one; of an even number, the mean of the two in the middle."""
    return statistics.median(values)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which that share of ascending values lies; 0 if there are none."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


def paired_ratio(values: Sequence[float], base: Sequence[float]) -> float:
    """The median of the ratios round by round: what drifts from round to round cancels."""
    if len(values) != len(base):
        raise ValueError(f"{len(values)} rounds beside {len(base)}")
    return median([value / other for value, other in zip(values, base, strict=True)])


def paired_interval(
    values: Sequence[float], base: Sequence[float], resamples: int = 2000
) -> tuple[float, float, float]:
    """The paired ratio between the ends of its 95 % interval, by bootstrap: low, middle, high.

    The rounds are drawn again and again from those that were measured, always in the same way.
    """
    middle = paired_ratio(values, base)
    ratios = [value / other for value, other in zip(values, base, strict=True)]
    draw = random.Random(0)
    medians = sorted(median(draw.choices(ratios, k=len(ratios))) for _ in range(resamples))
    return medians[resamples * 25 // 1000], middle, medians[resamples * 975 // 1000 - 1]


def spread(values: Sequence[float]) -> float:
    """Half the distance from the smallest to the largest, as a share of the median."""
    return (max(values) - min(values)) / 2 / median(values)


def times(ratio: float) -> str:
    """`12.3x`: three digits, whatever the size."""
    return f"{significant(ratio)}x"


def seconds(value: float) -> str:
    """Seconds, or milliseconds below one second."""
    return f"{significant(value)} s" if value >= 1 else f"{significant(value * 1000)} ms"


def percent(share: float) -> str:
    """A change, with its sign: `+1.2 %`."""
    return f"{share * 100:+.1f} %"


def significant(value: float) -> str:
    """Three digits, and no more than three after the point."""
    for limit, digits in ((0.9995, 3), (9.995, 2), (99.95, 1)):
        if abs(value) < limit:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"
