"""Whether a model can be split with the same result, and what would not be the same.

What the model's classes show is looked at. Then a few rows are computed, as one and in two parts:
outputs have to be the same row by row, and the parts of the loss have to add up.
"""

from __future__ import annotations

from typing import Any

from . import batch, loss_parts
from .loss_parts import Part
from .micro_step import MicroStep, has_own_loss, unpack

_ROWS = 4
_SAME = 1e-3
"""Relative differences below this are rounding."""
_ALIKE = 0.3
"""The same for a model that draws random numbers in every call."""
_RANDOM = ("Dropout", "SpatialDropout", "Gaussian", "AlphaDropout", "Random")


def refusal(model: Any, step: str, own: bool = False) -> str:
    """Why this model cannot be split, as far as its classes show; empty if it may be. `step` is the
    method that one step calls: train_step, test_step or predict_step; `own`: it may be the
    program's own."""
    name = type(model).__name__
    if not own and has_own(model, step):
        return f"{name}.{step} is the program's own"
    if model.distribute_strategy.num_replicas_in_sync > 1:
        return f"{name} is trained under {type(model.distribute_strategy).__name__}"
    for layer in model._flatten_layers():
        if getattr(layer, "stateful", False):
            return f"layer {layer.name!r} of {name} is stateful: its state belongs to a batch"
    return ""


def has_own(model: Any, step: str) -> bool:
    """Whether this method is the program's own."""
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    return getattr(type(model), step) is not getattr(TensorFlowTrainer, step)


def unequal(model: Any, rows: int | str, draws: str = "") -> str:
    """What is not the same with micro-batches of so many rows; empty if all is, but rounding.
    `draws` is what else than layers draws random numbers."""
    layers = [(type(layer).__name__, layer) for layer in model._flatten_layers()]
    notes = []
    if any(name.endswith("BatchNormalization") for name, _ in layers):
        notes.append(f"BatchNormalization sees {rows} rows at a time")
    random = [name for name, layer in layers if _draws(name, layer)]
    random += [draws] if draws else []
    if random:
        notes.append(f"{random[0]} draws other random numbers")
    return ", and ".join(notes)


def equal(model: Any, draws: str = "") -> None:
    """Raises batch.CannotBeCut if micro-batches would not give the same."""
    why = unequal(model, "fewer", draws)
    if why:
        raise batch.CannotBeCut(f"in micro-batches {why}")


def _draws(name: str, layer: Any) -> bool:
    """Whether the layer draws random numbers while it is trained."""
    if name.startswith(_RANDOM):
        return getattr(layer, "rate", None) != 0
    rates = (getattr(layer, rate, None) for rate in ("dropout", "recurrent_dropout"))
    return any(isinstance(one, float) and one > 0 for one in rates)


def found_kind(model: Any, data: Any) -> str:
    """Whether losses that the program has reduced itself are means or sums: what adds up. Raises
    batch.CannotBeCut if neither does, or if rows depend on each other. The caller puts back what
    variables of layers and metrics were before."""
    step = MicroStep(model, trains=False)
    few, steady = independent(model, data)
    rows = batch.count(few)
    if rows < 2:
        return "mean"
    x, y, sample_weight = unpack(few)
    whole = _total(step._loss(x, y, step._call(x), sample_weight))
    halves = [batch.part(few, 0, 1), batch.part(few, 1, rows)]
    found = []
    for kind in ("mean", "sum"):
        total = _sum_of_parts(model, step, halves, rows, kind)
        found.append((abs(total - whole) / max(abs(whole), abs(total), 1e-6), kind))
    # Where both are right, as for a loss of 0, a mean is meant.
    difference, kind = found[0] if found[0][0] < _SAME else min(found)
    if difference > (_SAME if steady else _ALIKE):
        raise batch.CannotBeCut(
            f"the loss of {type(model).__name__} is no sum and no mean over the rows of a batch"
        )
    return kind


def independent(model: Any, data: Any) -> tuple[Any, bool]:
    """A few rows of the batch, and whether the model computes the same for them each time. Raises
    batch.CannotBeCut if it computes something else for them as one and in two parts."""
    step = MicroStep(model, trains=False)
    rows = min(_ROWS, batch.count(data))
    few = batch.unlike(data, rows)
    outputs = step._call(unpack(few)[0])
    steady = _differs(outputs, step._call(unpack(few)[0])) < _SAME
    for begin, end in ((0, 1), (1, rows)):
        if steady and rows > 1:
            alone = step._call(unpack(batch.part(few, begin, end))[0])
            if _differs(_cut(outputs, begin, end), alone) > _SAME:
                raise batch.CannotBeCut(
                    f"what {type(model).__name__} computes for a row depends on the other rows "
                    "of its batch"
                )
    return few, steady


def _sum_of_parts(model: Any, step: MicroStep, halves: list[Any], rows: int, kind: str) -> float:
    opaque = has_own_loss(model)
    counts = []
    for half in halves:
        part = Part(batch.rows(half), rows, kind, opaque)
        _loss_of(model, step, half, part)
        counts.append(part.amounts)
    totals = [sum(amounts) for amounts in zip(*counts, strict=True)]
    total = 0.0
    for half in halves:
        part = Part(batch.rows(half), rows, kind, opaque, totals)
        loss = _loss_of(model, step, half, part)
        total += _total(part.of_scalar(loss) if opaque else loss)
    return total


def _loss_of(model: Any, step: MicroStep, piece: Any, part: Part) -> Any:
    x, y, sample_weight = unpack(piece)
    with loss_parts.computing(part, model):
        return step._loss(x, y, step._call(x), sample_weight)


def _total(loss: Any) -> float:
    import tensorflow as tf

    return float(tf.reduce_sum(tf.cast(loss, tf.float32)))


def _cut(outputs: Any, begin: int, end: int) -> Any:
    import tensorflow as tf

    return tf.nest.map_structure(lambda one: one[begin:end], outputs)


def _differs(one: Any, other: Any) -> float:
    """The largest difference of two outputs, relative to the largest number of them."""
    import tensorflow as tf

    largest = 0.0
    for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True):
        if a.shape != b.shape:
            return float("inf")
        a, b = tf.cast(a, tf.float32), tf.cast(b, tf.float32)
        scale = max(float(tf.reduce_max(tf.abs(a))), 1e-6) if tf.size(a) > 0 else 1.0
        if tf.size(a) > 0:
            largest = max(largest, float(tf.reduce_max(tf.abs(a - b))) / scale)
    return largest
