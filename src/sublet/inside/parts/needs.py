"""What the calls of a model take of memory when it is trained: estimated, as nothing is computed.

Weights, their gradients and what the optimizer keeps for each are known. Activations are those
tensors of TensorFlow's graph that the backward pass reads again. What recurrent layers keep in
their loops is not seen, nor what operations take while they run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

from .calls import Graph

_SAME_MEMORY = ("Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient")
_NO_ACTIVATIONS = ("ReadVariableOp", "Const", "Placeholder", "Shape")
_WITHOUT_OPTIMIZER = 2
"""The copies of a weight that an optimizer keeps if none is known yet: Adam's."""


@dataclasses.dataclass(frozen=True)
class Need:
    """Bytes, by what they are for."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    """Those of a whole batch."""

    @property
    def fixed(self) -> int:
        """What does not depend on the batch."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        return self.fixed + self.activations

    def __add__(self, other: Need) -> Need:
        return Need(
            self.weights + other.weights,
            self.gradients + other.gradients,
            self.optimizer + other.optimizer,
            self.activations + other.activations,
        )


def of_calls(graph: Graph, rows: int, slots: float) -> list[Need]:
    """The needs of all calls for batches of so many rows, if an optimizer keeps `slots` copies of
    each weight. A layer that is called twice has its weights counted once."""
    seen: set[int] = set()
    needs = []
    kept, gradients = _traced(graph, rows)
    for call, activations in zip(graph.calls, kept, strict=True):
        new = [one for one in call.variables if id(one) not in seen]
        seen.update(map(id, new))
        optimizer = int(slots * size(one for one in new if one.trainable))
        of_weights = sum(gradients.get(id(one), 0) for one in new)
        needs.append(Need(size(new), of_weights, optimizer, activations))
    return needs


def size(variables: Iterable[Any]) -> int:
    """The bytes of variables, or of symbols whose shapes are known."""
    return sum(_bytes(tuple(one.shape), one.dtype) for one in variables)


def row_size(symbol: Any) -> int:
    """The bytes of one row of a symbol of Keras; dimensions that are not known count as 1."""
    return _bytes(tuple(length or 1 for length in symbol.shape[1:]), symbol.dtype)


def slots_of(optimizer: Any) -> float:
    """How many copies of a weight the optimizer keeps: its likeness is asked to train a small
    one."""
    import keras
    import numpy as np
    import tensorflow as tf

    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if optimizer is None:
        return _WITHOUT_OPTIMIZER
    try:
        with tf.device("CPU:0"):
            weight = keras.Variable(np.zeros((3, 5), "float32"))
            likeness = type(optimizer).from_config(optimizer.get_config())
            likeness.build([weight])
    except Exception:  # One of the program's own that cannot be copied.
        return _WITHOUT_OPTIMIZER
    kept: int = sum(math.prod(one.shape) for one in likeness.variables if len(one.shape))
    return kept / 15


def _traced(graph: Graph, rows: int) -> tuple[list[int], dict[int, int]]:
    """For each call, the bytes of what the backward pass of all reads of it again; for each weight,
    those of its gradient."""
    import tensorflow as tf

    ends: list[int] = []
    gradients: dict[int, int] = {}

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]  # TensorFlow has no types.
    def trace(*inputs: Any) -> None:
        ends.clear()
        here = tf.compat.v1.get_default_graph()
        values = dict(zip(graph.inputs, inputs, strict=True))
        with tf.GradientTape() as tape:
            for call in graph.calls:
                found = call.run(values, training=True)
                values.update(zip(call.outputs, found, strict=True))
                ends.append(len(here.get_operations()))
        outputs = [values[number] for number in graph.outputs]
        weights = graph.model.trainable_weights
        found = tape.gradient([one for one in outputs if one.dtype.is_floating], weights)
        for weight, gradient in zip(weights, found, strict=True):
            # That of an embedding is as large as the rows that are looked up.
            sparse = isinstance(gradient, tf.IndexedSlices)
            gradients[id(weight)] = size([weight]) if not sparse else _tensor_size(gradient.values)

    specs = [
        tf.TensorSpec((rows, *symbol.shape[1:]), symbol.dtype) for symbol in graph.model.inputs
    ]
    operations = trace.get_concrete_function(*specs).graph.get_operations()
    graph.model._clear_losses()
    places = {operation.name: place for place, operation in enumerate(operations)}
    kept: list[int] = [0] * len(ends)
    seen: set[str] = set()
    for operation in operations[ends[-1] :]:
        for tensor in operation.inputs:
            while tensor.op.type in _SAME_MEMORY:
                tensor = tensor.op.inputs[0]
            place = places[tensor.op.name]
            if (
                place < ends[-1]
                and tensor.name not in seen
                and tensor.op.type not in _NO_ACTIVATIONS
            ):
                seen.add(tensor.name)
                kept[next(call for call, end in enumerate(ends) if place < end)] += _tensor_size(
                    tensor
                )
    return kept, gradients


def _tensor_size(tensor: Any) -> int:
    """The bytes of a tensor; none if its shape is not known."""
    return int(tensor.dtype.size * (tensor.shape.num_elements() or 0))


def _bytes(shape: tuple[int, ...], dtype: Any) -> int:
    import tensorflow as tf

    return int(math.prod(shape) * tf.as_dtype(dtype).size)
