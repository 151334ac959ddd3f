"""Arrays that stay where the program has them: only their batches become tensors.

Keras makes tensors of all that it is given. On a CPU these are in the lease, and copies of arrays
that the program has beside it. Here Keras shuffles and cuts the numbers of the rows, in its own way
and so in the same order, and the rows are taken from the arrays when their batch is made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..current_lease import current
from . import memory

_SMALL = 0.2
"""Arrays that take less than this share of the lease are left to Keras."""
_NUMBERS = "biuf"
"""Kinds of NumPy's types: truth values, integers, floats."""
_AHEAD = 2


def install() -> None:
    """Patch what Keras makes batches of arrays with."""
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    original = ArrayDataAdapter.get_tf_dataset

    @functools.wraps(original)
    def get_tf_dataset(self: Any) -> Any:
        return _by_rows(self, original) if _are_large(self._inputs) else original(self)

    ArrayDataAdapter.get_tf_dataset = get_tf_dataset


def _are_large(inputs: Any) -> bool:
    import numpy as np
    from keras.src import tree

    lease, limit = current(), memory.limit()
    if lease is None or lease.on_gpu or limit is None:
        return False
    arrays = tree.flatten(inputs)
    if not all(isinstance(one, np.ndarray) and one.dtype.kind in _NUMBERS for one in arrays):
        return False
    return bool(sum(one.nbytes for one in arrays) > _SMALL * limit)


def _by_rows(adapter: Any, original: Callable[[Any], Any]) -> Any:
    import numpy as np
    import tensorflow as tf
    from keras.src import tree
    from keras.src.trainers.data_adapters.array_slicing import convert_to_sliceable

    inputs = adapter._inputs
    arrays = tree.flatten(inputs)
    first = tree.map_structure(lambda one: one[:1], inputs)
    seen = tree.flatten(convert_to_sliceable(first, target_backend="tensorflow"))
    likes = [tf.convert_to_tensor(one) for one in seen]
    structure = tree.lists_to_tuples(inputs)

    def take(rows: Any) -> list[Any]:
        return [
            one[rows].astype(like.dtype.as_numpy_dtype, copy=False)
            for one, like in zip(arrays, likes, strict=True)
        ]

    def batch(rows: Any) -> Any:
        found = tf.numpy_function(take, [rows], [like.dtype for like in likes])
        for one, like in zip(found, likes, strict=True):
            one.set_shape([rows.shape[0], *like.shape[1:]])
        return tree.pack_sequence_as(structure, found)

    adapter._inputs = np.arange(adapter._num_samples)
    try:
        numbers = original(adapter)
    finally:
        adapter._inputs = inputs
    return numbers.map(batch, num_parallel_calls=_AHEAD, deterministic=True).prefetch(_AHEAD)
