"""The batches of an epoch: one pass over the data feeds all models.

They come in chunks of several batches, as one tensor each, so that many steps are one call. A chunk
can be taken again from any of its steps on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src import tree

from ..training.refused import Refused

_BYTES = 64 << 20
"""A chunk has as many batches as are no larger than this together, and one at least."""


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Batches of the same size."""

    data: Any
    """What `fit` would have for a batch, with an axis before the rows that counts the steps. If
    models have orders of their own, the axis after it counts the models."""
    steps: int
    ordered: bool = False
    """Whether models have orders of their own."""

    def of(self, begin: int, end: int) -> Chunk:
        """The chunk for these of the models."""
        if not self.ordered:
            return self
        return self._changed(lambda one: one[:, begin:end], self.steps)

    def alone(self) -> Chunk:
        """The chunk for one model, without an axis for models."""
        if not self.ordered:
            return self
        return Chunk(tree.map_structure(lambda one: one[:, 0], self.data), self.steps)

    def after(self, steps: int) -> Chunk:
        """What is left of it after so many steps."""
        return self._changed(lambda one: one[steps:], self.steps - steps)

    def first(self, steps: int) -> Chunk:
        """So many of its steps at the most."""
        return self._changed(lambda one: one[:steps], min(steps, self.steps))

    def _changed(self, change: Any, steps: int) -> Chunk:
        return dataclasses.replace(self, data=tree.map_structure(change, self.data), steps=steps)


class ArrayBatches:
    """Batches of rows of arrays."""

    def __init__(self, arrays: tuple[Any, ...], size: int, orders: Any = None) -> None:
        """`arrays` are x, y and perhaps weights, each a structure of arrays of as many rows.
        `orders` are numbers of rows: for all models, or with an axis before that counts models."""
        self._arrays = arrays
        rows = len(tree.flatten(arrays)[0])
        self._orders = np.arange(rows) if orders is None else np.asarray(orders)
        self._size = min(size, rows)
        self._rows = rows

    @property
    def steps(self) -> int:
        """How many batches there are."""
        return -(-self._rows // self._size)

    @property
    def arguments(self) -> dict[str, Any]:
        """The same for Keras' own `fit` and `evaluate`, of the first model."""
        rows = self._orders.reshape(-1, self._rows)[0]
        taken = tree.map_structure(lambda one: one[rows], self._arrays)
        return dict(zip(("x", "y", "sample_weight"), taken, strict=False)) | {
            "batch_size": self._size
        }

    def start(self) -> Chunk:
        """The first batch, which is not taken out."""
        return self._chunk(0, self._size, 1)

    def epoch(self) -> Iterator[Chunk]:
        """The pass over the data."""
        full = self._rows // self._size
        most = _most(self.start().data)
        for begin in range(0, full, most):
            end = min(begin + most, full)
            yield self._chunk(begin * self._size, end * self._size, end - begin)
        if full * self._size < self._rows:
            yield self._chunk(full * self._size, self._rows, 1)

    def _chunk(self, begin: int, end: int, steps: int) -> Chunk:
        rows = self._orders[..., begin:end]
        rows = rows.reshape(*rows.shape[:-1], steps, -1)
        if ordered := rows.ndim == 3:
            rows = rows.swapaxes(0, 1)
        data = tree.map_structure(lambda one: tf.convert_to_tensor(one[rows]), self._arrays)
        return Chunk(data, steps, ordered)


class DatasetBatches:
    """Batches of a tf.data.Dataset."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    @property
    def steps(self) -> int:
        """How many batches there are; the set is read once if it does not say so."""
        known = int(self._dataset.cardinality())
        return known if known >= 0 else int(self._dataset.reduce(0, lambda count, _: count + 1))

    @property
    def arguments(self) -> dict[str, Any]:
        """The same for Keras' own `fit` and `evaluate`."""
        return {"x": self._dataset}

    def start(self) -> Chunk:
        """The first batch, which is not taken out."""
        return _joined([tree.map_structure(_dense, next(iter(self._dataset.take(1))))])

    def epoch(self) -> Iterator[Chunk]:
        """The next pass over the data."""
        kept: list[Any] = []
        for batch in self._dataset:
            batch = tree.map_structure(_dense, batch)
            if kept and (
                len(kept) == _most(_joined(kept[:1]).data) or _shapes(kept[0]) != _shapes(batch)
            ):
                yield _joined(kept)
                kept = []
            kept.append(batch)
        if kept:
            yield _joined(kept)


Batches = ArrayBatches | DatasetBatches


def _dense(tensor: Any) -> Any:
    if isinstance(tensor, (tf.SparseTensor, tf.RaggedTensor)):
        raise Refused("Sparse and ragged batches cannot feed several models.", "Make them dense.")
    return tensor


def _joined(batches: list[Any]) -> Chunk:
    return Chunk(tree.map_structure(lambda *parts: tf.stack(parts), *batches), len(batches))


def _shapes(batch: Any) -> list[Any]:
    return [one.shape for one in tree.flatten(batch)]


def _most(chunk: Any) -> int:
    """How many batches like the one in this chunk make a chunk."""
    size = sum(int(tf.size(one)) * int(one.dtype.size) for one in tree.flatten(chunk))
    return max(1, _BYTES // max(1, size))
