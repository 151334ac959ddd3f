"""A few rows that are made up, computed as one and apart: what a model in parts relies on.

Rows must not depend on each other, and what layers add to the loss has to be a mean or a sum over
rows. Nothing of the model is different afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..training.refused import Refused
from .calls import Graph
from .part import Part, parts_of

_ROWS = 4
_LENGTH = 8
"""Of dimensions that the model leaves open."""
_SAME = 1e-3
"""Relative differences below this are rounding."""


def losses_are_sums(graph: Graph, name: str) -> bool:
    """Whether what layers add to the loss is a sum over rows, and not a mean. Raises Refused
    if it is neither, or if rows depend on each other."""
    import tensorflow as tf

    (part,) = parts_of(graph, [], ["CPU:0"])
    kept = [(one, tf.convert_to_tensor(one)) for one in part.non_trainable_variables]
    try:
        with tf.device(part.device):
            inputs = [_made_up(symbol) for symbol in graph.model.inputs]
            whole, added = _computed(graph, part, inputs, 0, _ROWS)
            again, added_again = _computed(graph, part, inputs, 0, _ROWS)
            first, of_first = _computed(graph, part, inputs, 0, 1)
            others, of_others = _computed(graph, part, inputs, 1, _ROWS)
    except (tf.errors.OpError, TypeError, ValueError):
        return False  # These rows are not what the model takes.
    finally:
        for variable, value in kept:
            variable.assign(value)
        graph.model._clear_losses()
    apart = [tf.concat(both, 0) for both in zip(first, others, strict=True)]
    if _differ(whole, again) < _SAME <= _differ(whole, apart):
        raise Refused(
            f"What {name} computes for a row depends on the other rows of its batch.",
            "It cannot be trained in micro-batches, and so not in parts.",
        )
    share = 1 / _ROWS
    means = [share * a + (1 - share) * b for a, b in zip(of_first, of_others, strict=True)]
    sums = [a + b for a, b in zip(of_first, of_others, strict=True)]
    if _differ(added, added_again) >= _SAME or _differ(added, means) < _SAME:
        return False
    if _differ(added, sums) < _SAME:
        return True
    raise Refused(
        f"What layers of {name} add to its loss is no sum and no mean over the rows of a batch.",
        "It cannot be trained in micro-batches, and so not in parts.",
    )


def _made_up(symbol: Any) -> Any:
    """Rows for an input: fractions, or small whole numbers."""
    import numpy as np
    import tensorflow as tf

    shape = (_ROWS, *(length or _LENGTH for length in symbol.shape[1:]))
    dtype = tf.as_dtype(symbol.dtype)
    numbers = np.random.default_rng(0).uniform(size=shape)
    return tf.cast(numbers if dtype.is_floating else numbers.round(), dtype)


def _computed(
    graph: Graph, part: Part, inputs: Sequence[Any], begin: int, end: int
) -> tuple[list[Any], list[Any]]:
    given = [one[begin:end] for one in inputs]
    return part.run(dict(zip(graph.inputs, given, strict=True)), training=False)


def _differ(some: Sequence[Any], others: Sequence[Any]) -> float:
    """The largest difference, relative to the largest number of the same tensor."""
    import tensorflow as tf

    largest = 0.0
    for one, other in zip(some, others, strict=True):
        one, other = tf.cast(one, tf.float32), tf.cast(other, tf.float32)
        scale = max(float(tf.reduce_max(tf.abs(one))), 1e-6)
        largest = max(largest, float(tf.reduce_max(tf.abs(one - other))) / scale)
    return largest
