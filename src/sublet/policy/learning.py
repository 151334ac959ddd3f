"""What runs of a program teach about its next one: from single runs to one sum of evidence.

Some runs say what a program needs, and the best of them decide: good runs with the same arguments;
else a line through runs that differ in nothing but the batch size; else a probe that came to its
end; else several runs with other arguments that agree. All others say little: runs of another text
of the script, runs that failed or were ended, one run with other arguments, a probe that was cut
short. What these held is a lower bound and no more. Pure: the broker brings the runs, newest first.
"""

import statistics
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from sublet.domain.history import History, Likeness, Point, Run
from sublet.policy.regression import MOST_REACH, LinearFit, fit, spread
from sublet.policy.sizing import FRAGMENTS, SMALLEST, Evidence, doubt, with_margin
from sublet.units import format_bytes

RECENT = 5
"""So many of the latest runs have a say in the largest peak."""
_LONG = 20
"""A line takes more, with several batch sizes; and so long a ceiling that failed is avoided."""
_FULL = 0.95
"""A run that held this share of its ceiling has filled it. A piece takes all of a free chunk that
is not twice its size, so what was held is then the ceiling rather than the need: it shows that the
ceiling was enough, and a margin on top of it would grow with every run."""
_OFTEN = 3
"""After so many runs that filled their ceilings and came to a good end, no margin is needed. And so
many runs with other arguments are believed, if they agree."""
_AGREE = 0.10
"""Peaks agree that lie no further apart than this share, or than the smallest lease: less makes no
difference to anybody."""
_OTHER_ARGUMENTS = 0.25
_PER_REACH = 0.10
"""Added to the margin: for runs with other arguments, and for each time the largest batch seen that
a line is followed beyond it."""


class Lesson(Struct, frozen=True):
    """The evidence, and which runs it was drawn from."""

    evidence: Evidence
    counted: tuple[Run, ...] = ()
    line: LinearFit | None = None


def learn(history: History) -> Lesson:
    """Weigh all that is known of a program into the evidence that sizes its next job."""
    own = _alike(history.runs, "same")
    failed, enough = _bounds(history)
    lesson = (
        _from_same(own) or _from_batches(history) or _from_probe(history) or _from_others(history)
    )
    if lesson is None:
        lesson = Lesson(Evidence(at_least=_most_seen(history), idle=_is_idle(own)))
    else:
        # Runs of this text that did not come to a good end may have held more.
        seen = max((run.peak or 0 for run in own[:RECENT]), default=0)
        lesson = replace(lesson, evidence=replace(lesson.evidence, at_least=seen))
    evidence = replace(
        lesson.evidence,
        outside=_outside(history),
        failed_at=failed,
        enough=max(lesson.evidence.enough, enough),
    )
    return replace(lesson, evidence=evidence)


def filled(run: Run) -> bool:
    """Whether a run held all of its ceiling, or nearly."""
    return (run.peak or 0) >= _FULL * run.ceiling


def _alike(runs: Sequence[Run], likeness: Likeness) -> list[Run]:
    """The runs of this likeness, of the script's text as it is."""
    return [run for run in runs if run.likeness == likeness and not run.edited]


def _good(runs: Sequence[Run], most: int = RECENT) -> list[Run]:
    """Those that came to a good end and used TensorFlow."""
    return [run for run in runs if run.good and run.peak is not None][:most]


def _from_same(own: list[Run]) -> Lesson | None:
    runs = _good(own)
    if not runs:
        return None
    full = [run for run in runs if filled(run)]
    peaks = [run.peak or 0 for run in runs if not filled(run)]
    enough = max((run.ceiling for run in full), default=0)
    if full and len(full) < _OFTEN:
        # It was at the edge, and the next run may go over it; once more, and no further.
        enough = max(enough, with_margin(min(run.ceiling for run in full), FRAGMENTS))
    if not peaks:
        # The smallest that was enough is known best.
        peak = min(run.peak or 0 for run in full)
        margin = 0.0 if len(full) >= _OFTEN else doubt(len(full))
    else:
        peak, margin = max(peaks), _margin(peaks)
    return Lesson(Evidence(peak, len(runs), margin=margin, enough=enough), tuple(runs))


def _margin(peaks: Sequence[int]) -> float:
    """What to add to the largest peak: what the allocator needs around it, or more where the
    typical peak and the spread say that a larger one may come."""
    typical = statistics.median(peaks)
    upper = typical * (1 + doubt(len(peaks), _spread(peaks)))
    return max(FRAGMENTS, upper / max(1, max(peaks)) - 1)


def _spread(peaks: Sequence[int]) -> float:
    typical = statistics.median(peaks)
    return spread([(peak, typical) for peak in peaks])


def _from_batches(history: History) -> Lesson | None:
    """From runs that differ in the batch size only."""
    runs = _good(_alike(history.runs, "batch"), _LONG)
    if not runs or history.batch is None:
        return None
    points = [Point(float(run.batch or 1), run.peak or 0) for run in runs]
    line = fit(points)
    if line is None:
        return _from_one_batch(runs, history.batch)
    if history.batch > MOST_REACH * line.largest:
        return _from_one_batch([max(runs, key=lambda run: run.batch or 0)], history.batch)
    batches = {run.batch for run in runs}
    margin = doubt(len(runs), line.spread) + _PER_REACH * line.reach(history.batch)
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
    evidence = Evidence(peak, len(runs), False, margin=doubt(len(runs)), basis=words)
    return Lesson(evidence, tuple(runs))


def _from_probe(history: History) -> Lesson | None:
    forecast = history.forecast
    if forecast is None or forecast.edited or not forecast.complete:
        return None
    words = f"a probe that expects at most {format_bytes(forecast.high)}"
    return Lesson(Evidence(forecast.high, len(forecast.points), margin=FRAGMENTS, basis=words))


def _from_others(history: History) -> Lesson | None:
    runs = _good(_alike(history.runs, "other"))
    peaks = [run.peak or 0 for run in runs]
    # All of them: one that is odd among several shows that arguments matter.
    if len(runs) < _OFTEN or max(peaks) > min(peaks) + max(_AGREE * min(peaks), SMALLEST):
        return None
    margin = _margin(peaks) + _OTHER_ARGUMENTS
    return Lesson(Evidence(max(peaks), len(runs), False, margin=margin), tuple(runs))


def _most_seen(history: History) -> int:
    """The most that anything which says little has shown the program to hold."""
    peaks = [run.peak or 0 for run in history.runs[:RECENT]]
    if history.forecast is not None:
        peaks.append(history.forecast.high)
    return max(peaks, default=0)


def _is_idle(own: list[Run]) -> bool:
    """Whether the program comes to a good end without ever starting TensorFlow."""
    latest = own[:RECENT]
    return bool(latest) and all(run.good and run.peak is None for run in latest)


def _bounds(history: History) -> tuple[int, int]:
    """The largest ceiling that was too small, while no larger one has been enough; and where one
    has, what the next one is not to fall below: the smallest that was, or twice what failed.

    What failed with a smaller batch is too small for a larger one, too. Runs of another text of the
    script, or with other arguments, count where there are no better ones.
    """
    alike = [
        run
        for run in history.runs
        if run.likeness == "same"
        or (run.likeness == "batch" and (run.batch or 0) <= (history.batch or 0))
    ]
    counting = [run for run in alike if not run.edited] or alike or list(history.runs)
    failed = max((run.ceiling for run in counting[:_LONG] if run.exceeded), default=0)
    larger = [
        run.ceiling
        for run in counting[:_LONG]
        if run.good and run.peak is not None and run.ceiling > failed
    ]
    return (0, min(*larger, 2 * failed)) if failed and larger else (failed, 0)


def _outside(history: History) -> int | None:
    """What its process adds beside its pool, from runs that were started as this one will be. One
    that ran out of memory had not touched all of its pool, so of that nothing is known.

    Of a GPU the driver says what a process holds, so all runs count, on a card of the same model.
    """
    if history.model:
        there = [run.outside for run in history.runs if run.model == history.model]
        return max([amount for amount in there if amount is not None][:RECENT], default=None)
    starts = {"warm": ("warm", "fresh")}.get(history.start, (history.start,))
    runs = [
        run
        for run in history.runs
        if run.outside is not None and not run.exceeded and run.start in starts
    ]
    alike = [run for run in runs if run.likeness != "other"] or runs
    return max((run.outside or 0 for run in alike[:RECENT]), default=None)
