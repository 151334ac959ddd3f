"""A batch as Keras hands it to a step: a structure of tensors whose first dimension is the row."""

from __future__ import annotations

from typing import Any


class CannotBeCut(Exception):
    """Says why a batch cannot be cut into rows, in words for the user."""


def leaves(data: Any) -> list[Any]:
    """All tensors of the batch."""
    import tensorflow as tf

    return [leaf for leaf in tf.nest.flatten(data) if leaf is not None]


def checked(data: Any) -> Any:
    """The batch, with arrays as tensors, if all of its tensors have the same number of rows; else
    CannotBeCut."""
    import tensorflow as tf

    def tensor(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)):
            return leaf
        return tf.convert_to_tensor(leaf)

    data = tf.nest.map_structure(tensor, data)
    counts = set()
    for leaf in leaves(data):
        if leaf.shape.rank == 0:
            raise CannotBeCut("a tensor of its batches has no rows")
        counts.add(count_of(leaf))
    if len(counts) != 1:
        raise CannotBeCut("the tensors of its batches have different numbers of rows")
    if counts == {0}:
        raise CannotBeCut("a batch has no rows")
    return data


def count(data: Any) -> int:
    """The number of rows of a batch that is there."""
    return count_of(leaves(data)[0])


def count_of(leaf: Any) -> int:
    """The number of rows of one tensor that is there."""
    known = leaf.shape[0]
    return int(rows_of(leaf)) if known is None else int(known)


def rows_of(leaf: Any) -> Any:
    """The number of rows of one tensor, as a tensor."""
    import tensorflow as tf

    if isinstance(leaf, tf.RaggedTensor):
        return leaf.nrows(tf.int32)
    if isinstance(leaf, tf.SparseTensor):
        return tf.cast(leaf.dense_shape[0], tf.int32)
    return tf.shape(leaf)[0]


def rows(data: Any) -> Any:
    """The number of rows of a batch, as a tensor."""
    return rows_of(leaves(data)[0])


def part(data: Any, begin: Any, end: Any) -> Any:
    """The rows from `begin` up to `end`."""
    import tensorflow as tf

    def cut(leaf: Any) -> Any:
        if leaf is None:
            return None
        if isinstance(leaf, tf.SparseTensor):
            shape = tf.cast(leaf.dense_shape, tf.int64)
            start = tf.concat([[tf.cast(begin, tf.int64)], tf.zeros_like(shape[1:])], 0)
            size = tf.concat([[tf.cast(end - begin, tf.int64)], shape[1:]], 0)
            return tf.sparse.slice(leaf, start, size)
        return leaf[begin:end]

    return tf.nest.map_structure(cut, data)


def unlike(data: Any, most: int) -> Any:
    """So many rows of a batch that is there, or all: those that differ most in how many zeros they
    have, as rows do whose ends are filled up, and the first."""
    import numpy as np
    import tensorflow as tf

    rows = count(data)
    chosen: list[int] = []
    if all(isinstance(leaf, tf.Tensor) for leaf in leaves(data)):
        for leaf in leaves(data):
            if leaf.dtype.is_floating or leaf.dtype.is_integer:
                # By NumPy, beside the pool: there is little room in it now.
                filled = np.count_nonzero(leaf.numpy().reshape(rows, -1), axis=1)
                chosen += [int(filled.argmin()), int(filled.argmax())]
        chosen = list(dict.fromkeys([*chosen, *range(min(rows, most))]))[:most]
        return tf.nest.map_structure(
            lambda leaf: None if leaf is None else tf.gather(leaf, sorted(chosen)), data
        )
    return part(data, 0, min(most, rows))


def cells(data: Any) -> int:
    """How many elements a row has, in all tensors: what tells long rows from short ones."""
    import tensorflow as tf

    total = 0
    for leaf in leaves(data):
        if isinstance(leaf, tf.RaggedTensor):
            total += int(tf.size(leaf.flat_values)) // max(1, int(leaf.nrows()))
        elif isinstance(leaf, tf.SparseTensor):
            total += int(tf.size(leaf.values)) // max(1, int(leaf.dense_shape[0]))
        else:
            total += leaf.shape.num_elements() // max(1, leaf.shape[0])
    return total


def any_rows(data: Any) -> Any:
    """The specification of a batch like this one with any number of rows."""
    import tensorflow as tf

    def spec(leaf: Any) -> Any:
        if leaf is None:
            return None
        if isinstance(leaf, tf.RaggedTensor):
            given = leaf._type_spec
            shape = tf.TensorShape([None, *given.shape[1:]])
            return tf.RaggedTensorSpec(
                shape, given.dtype, given.ragged_rank, given.row_splits_dtype
            )
        if isinstance(leaf, tf.SparseTensor):
            return tf.SparseTensorSpec(tf.TensorShape([None, *leaf.shape[1:]]), leaf.dtype)
        return tf.TensorSpec(tf.TensorShape([None, *leaf.shape[1:]]), leaf.dtype)

    return tf.nest.map_structure(spec, data)
