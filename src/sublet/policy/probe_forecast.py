"""From a probe's short runs to what a full run will need, as an interval."""

from collections.abc import Sequence

from msgspec import Struct

from sublet.domain.history import Forecast, Point
from sublet.policy.regression import fit
from sublet.policy.sizing import after_failure, doubt
from sublet.units import format_bytes

_CUT_SHORT = 0.35
"""Added to the doubt when a run was stopped before it came to its end, or failed on the way."""
_FOLLOWED = 0.30
"""Added for a peak all of which lies beyond the batches that were tried."""


class Pass(Struct, frozen=True):
    """One short run of a probe."""

    share: float
    """The batch it ran with, as a share of the program's own."""
    peak: int
    complete: bool = True
    """It came to its end by itself."""
    scaled: bool = True
    """The program's batches were found, and made smaller; otherwise it ran with its own."""
    ceiling: int = 0
    exceeded: bool = False
    rows: int = 0
    """Of the batch that it ran with; 0 if none was found."""
    full: int = 0
    """Of the program's own batch."""
    seconds: float = 0.0
    """The quickest step of its training; 0 if there was none."""
    epochs: int = 0
    steps: int = 0
    """Of a full run; 0 if they are not known."""
    weights: int = 0
    """Bytes that are trained."""


def forecast(passes: Sequence[Pass], at: float = 0.0) -> Forecast:
    """The expected peak of a full run, and an interval around it. At least one pass is needed."""
    complete = all(one.complete for one in passes)
    points = tuple(Point(one.share, one.peak) for one in passes)
    seen = max(one.peak for one in passes)
    line = fit(points) if all(one.scaled for one in passes) else None
    expected, beyond = seen, 0.0
    whole = [one.peak for one in passes if one.share >= 1]
    if line is not None and not whole:
        expected = max(line.at(1.0), seen)
        beyond = line.slope * max(0.0, 1 - line.largest) / max(1, expected)
    elif line is not None:
        expected = max(whole)
    margin = doubt(1) + _FOLLOWED * beyond + _CUT_SHORT * (not complete)
    # Where the line and a run with the whole batch disagree, the interval holds both.
    either = (expected, line.at(1.0)) if line is not None else (expected,)
    high = int(max(either) * (1 + margin))
    low = int(min(either) * (1 - min(margin, 0.9)))
    for one in passes:
        if one.exceeded:
            high = max(high, after_failure(one.ceiling, one.peak, None))
    words = _words(passes, complete)
    return Forecast(expected, min(low, expected), high, points, words, at, complete=complete)


def _words(passes: Sequence[Pass], complete: bool) -> str:
    if any(one.scaled for one in passes):
        shares = " and ".join(f"{one.share:.0%}" for one in passes)
        words = f"short runs with {shares} of the batch"
    else:
        words = "a short run with the program's own batches: none could be made smaller"
    if any(one.exceeded for one in passes):
        return f"{words}; it ran out of {format_bytes(max(one.ceiling for one in passes))}"
    return words if complete else f"{words}; it did not come to its end"
