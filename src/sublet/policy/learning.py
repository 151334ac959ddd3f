"""What runs of a program teach about its next one: from single runs to one sum of evidence.

The best evidence decides: runs with the same arguments; else a line through runs that differ in
nothing but the batch size; else a probe; else runs with other arguments. Pure: the broker brings
the runs, newest first.
"""

import statistics
from collections.abc import Sequence

from msgspec import Struct

from sublet.domain.history import History, Likeness, Point, Run
from sublet.policy.fits import MOST_REACH, Line, fit, spread
from sublet.policy.sizing import FRAGMENTS, Evidence, doubt, with_margin
from sublet.units import format_bytes

RECENT = 5
"""So many of the latest runs have a say in the largest peak."""
_FOR_A_LINE = 20
"""A line takes more, with several batch sizes; and so long a ceiling that failed is avoided."""
_FULL = 0.95
"""A run that held this share of its ceiling has filled it. A piece takes all of a free chunk that
is not twice its size, so what was held is then the ceiling rather than the need: it shows that the
ceiling was enough, and a margin on top of it would grow with every run."""
_OFTEN = 3
"""After so many runs that filled their ceilings and came to a good end, no margin is needed."""
_EDITED = 0.10
_UNFINISHED = 0.25
_OTHER_ARGUMENTS = 0.25
_PER_REACH = 0.10
"""Added to the margin: for runs of another text of the script, for runs that did not come to a good
end, for runs with other arguments, and for each time the largest batch seen that a line is followed
beyond it."""


class Lesson(Struct, frozen=True):
    """The evidence, and which runs it was drawn from."""

    evidence: Evidence
    counted: tuple[Run, ...] = ()
    line: Line | None = None


def learn(history: History) -> Lesson:
    """Weigh what is known."""
    same = _counting(history.runs, "same")
    alike = [run for run in history.runs if run.likeness != "other"]
    known = (
        _from_same(same, _too_small(history.runs)) or _from_batches(history) or _from_probe(history)
    )
    if known is None:
        others = _counting(history.runs, "other") or _counting(history.runs, "batch")
        known = _from_others(others)
    seen = any(run.likeness == "same" for run in history.runs)
    lesson = known or Lesson(Evidence(same_arguments=seen))
    # One that ran out of memory had not touched all of its pool, so what lies beside it is unknown.
    outsides = [
        run.outside
        for run in (alike or history.runs)
        if run.outside is not None and not run.exceeded
    ]
    evidence = Evidence(
        peak=lesson.evidence.peak,
        runs=lesson.evidence.runs,
        same_arguments=lesson.evidence.same_arguments,
        outside=max(outsides[:RECENT], default=None),
        failed_at=_failed_at(history),
        margin=lesson.evidence.margin,
        basis=lesson.evidence.basis,
        enough=lesson.evidence.enough,
    )
    return Lesson(evidence, lesson.counted, lesson.line)


def _counting(runs: Sequence[Run], likeness: Likeness, most: int = RECENT) -> list[Run]:
    """The latest runs of this likeness whose peak says what the program needs: those that came to a
    good end; where there are none, those that failed of something else than memory."""
    latest = [run for run in runs if run.likeness == likeness][: 2 * most]
    measured = [run for run in latest if run.peak is not None]
    good = [run for run in measured if run.good]
    return (good or [run for run in measured if not run.exceeded])[:most]


def _too_small(runs: Sequence[Run]) -> int:
    """The largest ceiling that has failed, even if runs have come to a good end since: what failed
    once in a while would fail again."""
    latest = [run for run in runs if run.likeness == "same"][:_FOR_A_LINE]
    return max((run.ceiling for run in latest if run.exceeded), default=0)


def _from_same(runs: list[Run], too_small: int) -> Lesson | None:
    if not runs:
        return None
    full = [run for run in runs if filled(run) and run.good]
    enough = max((run.ceiling for run in full), default=0)
    if full and len(full) < _OFTEN:
        # It was at the edge, and the next run may go over it; once more, and no further.
        enough = max(enough, with_margin(min(run.ceiling for run in full), FRAGMENTS))
    if too_small:
        enough = max(enough, with_margin(too_small, FRAGMENTS))
    if len(full) == len(runs) >= _OFTEN:
        return Lesson(Evidence(enough, len(runs), margin=0.0, enough=enough), tuple(runs))
    peaks = _needs(runs)
    margin = _margin(peaks)
    if all(run.edited for run in runs):
        margin += _EDITED
    if not runs[0].good:
        margin += _UNFINISHED
    return Lesson(Evidence(max(peaks), len(runs), margin=margin, enough=enough), tuple(runs))


def _needs(runs: Sequence[Run]) -> list[int]:
    """What each run needed. One that filled its ceiling has confirmed what the others showed; where
    all did, the smallest that was enough is known best."""
    peaks = [run.peak or 0 for run in runs]
    others = [peak for peak, run in zip(peaks, runs, strict=True) if not filled(run)]
    confirmed = max(others) if others else min(peaks)
    return [min(peak, confirmed) for peak in peaks]


def filled(run: Run) -> bool:
    """Whether a run held all of its ceiling, or nearly."""
    return (run.peak or 0) >= _FULL * run.ceiling


def _margin(peaks: Sequence[int]) -> float:
    """What to add to the largest peak: what the allocator needs around it, or more where the
    typical peak and the spread say that a larger one may come."""
    typical = statistics.median(peaks)
    apart = spread([(peak, typical) for peak in peaks])
    upper = typical * (1 + doubt(len(peaks), apart))
    return max(FRAGMENTS, upper / max(1, max(peaks)) - 1)


def _from_batches(history: History) -> Lesson | None:
    """From runs that differ in the batch size only."""
    runs = _counting(history.runs, "batch", _FOR_A_LINE)
    if not runs or history.batch is None:
        return None
    points = [Point(float(run.batch or 1), run.peak or 0) for run in runs]
    line = fit(points)
    if line is None:
        return _from_one_batch(runs, history.batch)
    batches = {run.batch for run in runs}
    if history.batch > MOST_REACH * line.largest:
        return _from_one_batch([max(runs, key=lambda run: run.batch or 0)], history.batch)
    margin = doubt(len(runs), line.spread) + _PER_REACH * line.reach(history.batch)
    if all(run.edited for run in runs):
        margin += _EDITED
    words = f"{len(runs)} runs with {len(batches)} batch sizes, at batch {history.batch}"
    evidence = Evidence(line.at(history.batch), len(runs), False, margin=margin, basis=words)
    return Lesson(evidence, tuple(runs), line)


def _from_one_batch(runs: list[Run], batch: int) -> Lesson:
    """With one batch size seen, the peak grows at most in proportion, and falls perhaps not."""
    seen = runs[0].batch or 1
    largest = max(run.peak or 0 for run in runs)
    peak = int(largest * max(1.0, batch / seen))
    words = f"{len(runs)} run{'s' * (len(runs) > 1)} at batch {seen}"
    if batch > seen:
        words += f", in proportion to batch {batch}"
    margin = doubt(len(runs)) + _EDITED * all(run.edited for run in runs)
    return Lesson(Evidence(peak, len(runs), False, margin=margin, basis=words), tuple(runs))


def _from_probe(history: History) -> Lesson | None:
    told = history.forecast
    if told is None:
        return None
    margin = FRAGMENTS + _EDITED * told.edited
    words = f"a probe that expects at most {format_bytes(told.high)}"
    return Lesson(Evidence(told.high, len(told.points), margin=margin, basis=words))


def _from_others(runs: list[Run]) -> Lesson | None:
    if not runs:
        return None
    peaks = [run.peak or 0 for run in runs]
    margin = _margin(peaks) + _OTHER_ARGUMENTS
    return Lesson(Evidence(max(peaks), len(runs), False, margin=margin), tuple(runs))


def _failed_at(history: History) -> int:
    """A ceiling that was too small counts until a later run like it has come to a good end. One
    that failed with a smaller batch was too small for a larger one too; runs with other arguments
    count where there are no better ones."""
    failed = 0
    alike = [
        run
        for run in history.runs
        if run.likeness == "same"
        or (run.likeness == "batch" and (run.batch or 0) <= (history.batch or 0))
    ]
    for run in alike or history.runs:
        if run.good:
            break
        failed = max(failed, run.ceiling if run.exceeded else 0)
    return failed
