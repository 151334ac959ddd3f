"""Many steps in one call of TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.src import tree


def spec_of(data: Any) -> Any:
    """What chunks like this one have in common: all but the number of batches."""
    return tree.map_structure(lambda one: tf.TensorSpec([None, *one.shape[1:]], one.dtype), data)


def chunk_loop(step: Callable[[Any], None], spec: Any) -> Callable[[Any, int], None]:
    """A graph that calls `step` with the first batches of a chunk, one after the other; it is
    called with the chunk and their number, and returns when they are done."""

    def steps(data: Any, count: Any) -> Any:
        def body(number: Any) -> Any:
            step(tree.map_structure(lambda one: one[number], data))
            return number + 1

        start = [tf.constant(0)]
        return tf.while_loop(lambda number: number < count, body, start, parallel_iterations=1)[0]

    function = tf.function(steps, autograph=False)
    # Not the function itself, which would warn of the many graphs that a sweep needs.
    traced = function.get_concrete_function(spec, tf.TensorSpec([], tf.int32))

    def call(data: Any, count: int) -> None:
        int(traced(*tree.flatten(data), tf.constant(count)))  # Waits for the device.

    return call
