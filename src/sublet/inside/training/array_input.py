"""Batches of arrays as a `tf.data` set that can begin anywhere.

The order of rows is drawn for each pass from a seed and the number of the pass. So where a training
stands in its data is told by two numbers. A few batches are made ahead, by as many threads as the
program has processors for: neither memory nor processors are taken from neighbours.
"""

from __future__ import annotations

import math
import os
from typing import Any

_AHEAD = 2
"""So many batches wait for the step that takes them, and as many are made meanwhile."""


class ArrayInput:
    """The arrays that Keras was given, as it has prepared them (an ArrayDataAdapter)."""

    def __init__(self, adapter: Any, seed: int) -> None:
        self._adapter = adapter
        self.rows = int(adapter._num_samples)
        self.batch = int(adapter._batch_size)
        self.shuffle = adapter._shuffle
        self.seed = seed
        self.batches = math.ceil(self.rows / self.batch)
        self._whole: Any = None

    def dataset(self, number: int = 0) -> Any:
        """All batches from that number on, pass after pass, without end."""
        import tensorflow as tf

        first, skipped = divmod(number, self.batches)
        seed, rows, size, shuffle = self.seed, self.rows, self.batch, self.shuffle
        stateless_shuffle = tf.random.experimental.stateless_shuffle

        def one_pass(number: Any) -> Any:
            order = tf.range(rows, dtype=tf.int64)
            if shuffle and shuffle != "batch":
                order = stateless_shuffle(order, [tf.constant(seed, tf.int64), number])

            def rows_of(begin: Any) -> Any:
                found = order[begin : begin + size]
                if shuffle == "batch":
                    found = stateless_shuffle(found, [seed + number, begin])
                return found

            return tf.data.Dataset.range(0, rows, size).map(rows_of)

        order = tf.data.Dataset.counter(first).flat_map(one_pass).skip(skipped)
        self._whole = self._whole or self._arrays()
        batches = tf.data.Dataset.zip((order, self._whole)).map(
            _gathered, num_parallel_calls=_AHEAD, deterministic=True
        )
        return batches.prefetch(_AHEAD).with_options(bounded())

    def _arrays(self) -> Any:
        """All arrays, again and again."""
        import tensorflow as tf
        from keras.src import tree
        from keras.src.trainers.data_adapters.array_slicing import convert_to_sliceable

        with tf.device("CPU:0"):
            inputs = convert_to_sliceable(self._adapter._inputs, target_backend="tensorflow")
            return tf.data.Dataset.from_tensors(tree.lists_to_tuples(inputs)).repeat()


def _gathered(rows: Any, arrays: Any) -> Any:
    """These rows of all arrays."""
    import tensorflow as tf
    from keras.src import tree
    from keras.src.trainers.data_adapters import array_slicing

    def gather(array: Any) -> Any:
        if isinstance(array, array_slicing.TensorflowSparseWrapper):
            return array_slicing.slice_tensorflow_sparse_wrapper(array, rows)
        if isinstance(array, (list, tuple, dict)):
            return None
        return tf.gather(array, rows, axis=0) if tf.is_tensor(array) else array

    return tree.traverse(gather, arrays)


def bounded() -> Any:
    """Options of a data set that takes no more threads than the program has processors."""
    import tensorflow as tf

    options = tf.data.Options()
    options.threading.private_threadpool_size = len(os.sched_getaffinity(0))
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return options
