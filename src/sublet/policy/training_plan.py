"""How a program would train in so much memory: from a probe's short runs to micro-batches.

Pure. The arithmetic is that of the programs themselves (`inside.training.sizes`), so that a run
with `--on-oom split` does what was planned.
"""

from collections.abc import Sequence

from msgspec import Struct

from sublet.inside.training.sizes import KEPT_FREE, Need, fitting, largest_part, parts
from sublet.policy.probe_forecast import Pass


class TrainingPlan(Struct, frozen=True):
    """What is expected of a training within a ceiling."""

    batch: int
    """Rows of the program's own batch."""
    rows: int
    """Of the largest micro-batch; those of the batch if it is not split."""
    pieces: int
    whole: int
    """Bytes that whole batches would need."""
    peak: int
    """Bytes that it will need as planned."""
    lacks: int
    """Bytes more that even the smallest micro-batches would need; 0 if the plan fits."""
    epochs: int
    steps: int
    """Of an epoch; 0 if that is not known."""
    seconds: float | None
    """Of the whole training; None if that is not known."""


def plan(passes: Sequence[Pass], ceiling: int) -> TrainingPlan | None:
    """The plan; None if no short run has shown the program's batch."""
    found = [one for one in passes if one.rows and one.full]
    if not found:
        return None
    batch, weights = max(one.full for one in found), max(one.weights for one in found)
    need = Need.through([(one.rows, one.peak) for one in found])
    room = ceiling * (1 - KEPT_FREE)
    rows = largest_part(batch, fitting(batch, need, room, weights))
    pieces = len(parts(batch, rows))
    peak = need.of(rows) + (weights if pieces > 1 else 0)
    last = max(found, key=lambda one: one.rows)
    return TrainingPlan(
        batch,
        rows,
        pieces,
        int(need.of(batch)),
        int(peak),
        int(peak / (1 - KEPT_FREE) - ceiling) + 1 if peak > room else 0,
        last.epochs,
        last.steps,
        _seconds(found, rows, pieces, last.epochs * last.steps),
    )


def _seconds(passes: Sequence[Pass], rows: int, pieces: int, steps: int) -> float | None:
    timed = [(one.rows, int(one.seconds * 1e6)) for one in passes if one.seconds]
    if not timed or not steps:
        return None
    return Need.through(timed).of(rows) / 1e6 * pieces * steps
