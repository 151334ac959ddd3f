"""When a program that was given all there was has settled, and what it may keep.

Pure: from a history of samples to a ceiling, or to none. A lease is only ever trimmed here; it is
never made so small that what was seen would not fit, with the margin of a first run, nor smaller
than what earlier runs of the program needed.
"""

from collections.abc import Sequence

from msgspec import Struct

from sublet.policy.sizing import SMALLEST, doubt, with_margin
from sublet.units import MiB

WATCHED = 30.0
"""Seconds that a program is watched before it can count as settled."""
STILL = 0.5
"""The share of its life in which its peak must not have grown."""
BEGUN = MiB
"""A program that never held so much has not begun: it may be reading its data."""
WORTHWHILE = 64 * MiB
"""Less room than this is not worth the trouble."""
_SLACK = 0.02
"""A peak that grew by this share has not grown."""


class Sample(Struct, frozen=True):
    """What the allocator held at one moment, and its peak until then."""

    at: float
    current: int
    peak: int


def trimmed(samples: Sequence[Sample], ceiling: int, needed: int = 0) -> int | None:
    """The ceiling for a program that has settled; None if it has not, or if it would not help.

    Samples are in the order of time, the first from when its runtime had started. `needed` is what
    earlier runs of the program show that it needs.
    """
    if not samples or samples[-1].peak < BEGUN:
        return None
    began, now = samples[0].at, samples[-1].at
    if now - began < WATCHED:
        return None
    quiet_since = now - STILL * (now - began)
    before = max((s.peak for s in samples if s.at <= quiet_since), default=0)
    if samples[-1].peak > before * (1 + _SLACK):
        return None
    kept = max(with_margin(samples[-1].peak, doubt(1)), needed, SMALLEST)
    worth = max(WORTHWHILE, ceiling // 10)
    return kept if ceiling - kept >= worth else None


def thinned(samples: Sequence[Sample], most: int = 64) -> list[Sample]:
    """A history that stays short: every other sample goes when it has grown too long. The first and
    the last stay, and the peaks only grow, so nothing that `trimmed` asks for is lost."""
    if len(samples) <= most:
        return list(samples)
    return [*samples[:-1:2], samples[-1]]
