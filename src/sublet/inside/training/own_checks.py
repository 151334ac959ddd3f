"""Whether a step of the program's own gives the same for a batch and for its parts: tried with four
rows, at once and as one and three.

Gradients, numbers that metrics are given and numbers that the step returns have to be means or sums
over rows; metrics and states have to come to the same. Random numbers are the same for every row
meanwhile, and BatchNormalization compares none.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from . import batch, loss_parts, step_graph, still_noise
from .own_step import OwnStep
from .program_step import metric_variables

_ROWS = 4
_SAME = 1e-3
"""Relative differences below this are rounding."""
_HALF = 3e-2
"""The same for a model that computes in half precision."""
_PRINTS = 64
"""So many sums stand for a gradient: all of it, three times, could be too large."""
_SMALL = 1e-3
"""Gradients below this share of the largest are rounding."""


@dataclasses.dataclass(frozen=True)
class Numbers:
    """What one run of the step has computed."""

    gradients: list[Any]
    scalars: list[Any]
    metrics: list[Any]
    states: list[Any]


def judge(step: OwnStep, data: Any) -> None:
    """Find out what of the step is a mean and what a sum. Raises batch.CannotBeCut if something is
    neither. The caller puts back what variables of layers and metrics were before."""
    few = batch.unlike(data, _ROWS)
    rows = batch.count(few)
    if rows < 2:
        return
    trial = _Trial(step, few)
    parts = [batch.part(few, 0, 1), batch.part(few, 1, rows)]
    shares = [1 / rows, 1 - 1 / rows]
    sums = [0.0] * loss_parts.MOST_TOTALS
    whole, one, three = (trial.run(piece, rows, sums) for piece in (few, *parts))
    name = step.program.name
    same = _HALF if _is_half(step.model) else _SAME
    kind = _kind(whole.gradients, one.gradients, three.gradients, shares, same)
    if kind is None:
        raise batch.CannotBeCut(
            f"the loss of {name} is no sum and no mean over the rows of a batch"
        )
    sums[0] = kind
    scalars = zip(whole.scalars, one.scalars, three.scalars, strict=True)
    for place, (at_once, first, rest) in enumerate(scalars, 1):
        kind = _kind([at_once], [first], [rest], shares, same)
        if kind is None:
            raise batch.CannotBeCut(
                f"{name} gives a metric what is no sum and no mean over the rows of a batch"
            )
        sums[place] = kind
    whole = trial.run(few, rows, sums)
    one = trial.run(parts[0], rows, sums)
    three = trial.run(parts[1], rows, sums)
    for variable, at_once, *apart in zip(
        trial.metrics, whole.metrics, one.metrics, three.metrics, strict=True
    ):
        if _differs([at_once], [apart[0] + apart[1]], [apart]) > same:
            raise batch.CannotBeCut(
                f"{name} measures by {variable.path} what is not of single rows"
            )
    for variable, at_once, *apart in zip(
        trial.states, whole.states, one.states, three.states, strict=True
    ):
        if _differs([at_once], [shares[0] * apart[0] + shares[1] * apart[1]], [apart]) > same:
            raise batch.CannotBeCut(f"{name} keeps something of a whole batch in {variable.path}")
    step.sums = sums


class _Trial:
    """The step with random numbers that are the same for every row."""

    def __init__(self, step: OwnStep, few: Any) -> None:
        import tensorflow as tf

        self._step = step
        self.metrics = metric_variables(step.model)
        self.states: list[Any] = []
        self._function = tf.function(self._compute, autograph=False)
        try:
            with still_noise.still_noise():
                self._concrete = self._function.get_concrete_function(
                    batch.any_rows(few),
                    tf.TensorSpec([], tf.int32),
                    tf.TensorSpec([loss_parts.MOST_TOTALS], tf.float32),
                )
        except (AttributeError, ImportError) as wrong:
            raise batch.CannotBeCut(
                f"random numbers of {step.program.name} cannot be held still here ({wrong})"
            ) from None
        drawn = still_noise.draws(step_graph.operations(self._concrete.graph))
        if drawn:
            raise batch.CannotBeCut(
                f"{step.program.name} draws random numbers that cannot be held still ({drawn[0]})"
            )

    def run(self, piece: Any, rows: int, sums: list[float]) -> Numbers:
        """What the step computes for some rows; variables are then as before, and metrics are shown
        by what was added to them."""
        import tensorflow as tf

        kept = [(one, tf.convert_to_tensor(one)) for one in self._step.state()]
        before = [tf.convert_to_tensor(one) for one in self.metrics]
        gradients, scalars = self._concrete(piece, tf.constant(rows), tf.constant(sums))
        found = Numbers(
            gradients,
            scalars,
            [
                tf.convert_to_tensor(one) - old
                for one, old in zip(self.metrics, before, strict=True)
            ],
            [tf.convert_to_tensor(one) for one in self.states],
        )
        for variable, value in kept:
            variable.assign(value)
        return found

    def _compute(self, piece: Any, rows: Any, sums: Any) -> tuple[list[Any], list[Any]]:
        import tensorflow as tf

        found, part = self._step.run(piece, rows, sums)
        self.states = found.moved
        prints = [_print(one) for one in found.gradients if one is not None]
        scalars = [*part.numbers, *(found.logs[name] for name in self._step.seen.direct)]
        return prints, [tf.cast(one, tf.float32) for one in scalars]


def _print(gradient: Any) -> Any:
    """A few sums over a gradient, with weights such that what adds up to 0 does not do so here."""
    import tensorflow as tf

    if isinstance(gradient, tf.IndexedSlices):
        width = tf.reduce_prod(tf.shape(gradient.values)[1:])
        first = tf.cast(gradient.indices, tf.int32)[:, None] * width
        cells = tf.reshape(first + tf.range(width)[None], [-1])
        gradient = gradient.values
    else:
        cells = tf.range(tf.size(gradient))
    values = tf.cast(tf.reshape(gradient, [-1]), tf.float32)
    weights = tf.cos(tf.cast(cells, tf.float32) * 0.7)
    return tf.math.unsorted_segment_sum(values * weights, cells % _PRINTS, _PRINTS)


def _kind(
    whole: list[Any], one: list[Any], three: list[Any], shares: list[float], same: float
) -> float | None:
    """1 if parts add up to the whole, 0 if their mean does, or both do; None if neither does."""
    parts = list(zip(one, three, strict=True))
    means = [shares[0] * a + shares[1] * b for a, b in parts]
    if _differs(whole, means, parts) <= same:
        return 0.0
    return 1.0 if _differs(whole, [a + b for a, b in parts], parts) <= same else None


def _differs(whole: list[Any], joined: list[Any], parts: list[Any]) -> float:
    """The largest difference of two lists of tensors, relative to the largest numbers of each."""
    import tensorflow as tf

    largest = [
        max(float(tf.reduce_max(tf.abs(tf.cast(one, tf.float32)))) for one in (at_once, *apart))
        for at_once, apart in zip(whole, parts, strict=True)
    ]
    least = max(_SMALL * max(largest, default=0.0), 1e-12)
    differences = [
        float(tf.reduce_max(tf.abs(tf.cast(a, tf.float32) - tf.cast(b, tf.float32))))
        for a, b in zip(whole, joined, strict=True)
    ]
    found = [one / max(size, least) for one, size in zip(differences, largest, strict=True)]
    return max(found, default=0.0) if not any(one != one for one in found) else float("inf")


def _is_half(model: Any) -> bool:
    return any(layer.compute_dtype in ("float16", "bfloat16") for layer in model._flatten_layers())
