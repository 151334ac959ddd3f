"""The data of all models: one pass over it feeds all of them.

An epoch comes in chunks of several batches, as one tensor each, so that many steps are one call. A
chunk can be taken again from any of its steps on.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src import tree
from keras.src.trainers.data_adapters import array_slicing, get_data_adapter
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

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

    def of(self, places: Sequence[int]) -> Chunk:
        """The chunk for these models."""
        if not self.ordered:
            return self
        data = tree.map_structure(lambda one: tf.gather(one, list(places), axis=1), self.data)
        return dataclasses.replace(self, data=data)

    def alone(self) -> Chunk:
        """The chunk for one model, without an axis for models."""
        if not self.ordered:
            return self
        return Chunk(tree.map_structure(lambda one: one[:, 0], self.data), self.steps)

    def after(self, steps: int) -> Chunk:
        """What is left of it after so many steps."""
        data = tree.map_structure(lambda one: one[steps:], self.data)
        return dataclasses.replace(self, data=data, steps=self.steps - steps)


class Batches:
    """What `fit` takes as data, for several models."""

    def __init__(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int | None = None,
        shuffle: bool | str = True,
        seed: int | None = None,
        sample_weight: Any = None,
        class_weight: dict[int, float] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> None:
        """With a seed, arrays come in the order that `fit` takes them in after
        `keras.utils.set_random_seed(seed)`, which is the same in each epoch. With `seeds`, each
        model has an order of its own. Raises Refused for data that cannot feed several models."""
        if callable(getattr(x, "__next__", None)):
            raise Refused(
                "A generator can be read once only.",
                "Give arrays, a tf.data set or a keras.utils.PyDataset.",
            )
        if isinstance(x, tf.data.Dataset):
            batch_size, shuffle = None, False  # The set has its own.
        try:
            self._adapter = get_data_adapter(
                x=x,
                y=y,
                sample_weight=sample_weight,
                batch_size=batch_size,
                shuffle=shuffle,
                class_weight=class_weight,
            )
        except ValueError as wrong:
            reason = str(wrong).strip().partition("\n")[0]
            raise Refused(
                f"This data cannot be trained with: {reason}.",
                "Give x and y as `fit` takes them.",
            ) from wrong
        self._arrays: _Arrays | None = None
        if isinstance(self._adapter, ArrayDataAdapter):
            self._arrays = _Arrays(self._adapter, seed, seeds)
        elif seeds is not None:
            raise Refused(
                "Only arrays can be shuffled for each model.", "Give arrays, or leave `seeds` out."
            )
        elif not isinstance(self._adapter, (TFDatasetAdapter, PyDatasetAdapter)):
            raise Refused(
                f"{type(x).__name__} data cannot feed several models.",
                "Give arrays, a tf.data set or a keras.utils.PyDataset.",
            )
        self._set: Any = None if self._arrays else self._adapter.get_tf_dataset()

    @property
    def ordered(self) -> bool:
        """Whether models have orders of their own."""
        return self._arrays is not None and self._arrays.ordered

    @property
    def first(self) -> Any:
        """A batch of one model, which is not taken out."""
        if self._arrays is not None:
            return self._arrays.first()
        return next(iter(self._set.take(1)))

    @property
    def equal(self) -> bool:
        """Whether all batches are known to have the same number of rows."""
        if self._arrays is not None:
            return self._arrays.equal
        shapes = [one.shape for one in tree.flatten(self._set.element_spec)]
        return all(shape.rank and shape[0] is not None for shape in shapes)

    @property
    def steps(self) -> int | None:
        """How many batches an epoch has, if that is known."""
        found = self._adapter.num_batches
        return None if found is None else int(found)

    def like(self, models: int, steps: int = 1) -> Chunk:
        """A chunk of the first batch, again and again, which is not taken out."""
        data = self.first
        if self.ordered:
            data = tree.map_structure(lambda one: tf.repeat(one[None], models, 0), data)
        repeated = tree.map_structure(lambda one: tf.repeat(one[None], steps, 0), data)
        return Chunk(repeated, steps, self.ordered)

    def epoch(self) -> Iterator[Chunk]:
        """The next pass over the data."""
        if self._arrays is not None:
            yield from self._arrays.epoch()
            return
        self._adapter.on_epoch_begin()
        kept: list[Any] = []
        for batch in self._set:
            batch = tree.map_structure(_dense, batch)
            if kept and (len(kept) == _most(kept[0]) or _shapes(kept[0]) != _shapes(batch)):
                yield _joined(kept)
                kept = []
            kept.append(batch)
        if kept:
            yield _joined(kept)
        self._adapter.on_epoch_end()


class _Arrays:
    """Batches out of arrays in memory."""

    def __init__(self, adapter: Any, seed: int | None, seeds: Sequence[int] | None) -> None:
        inputs = array_slicing.convert_to_sliceable(adapter._inputs, target_backend="tensorflow")
        inputs = tree.lists_to_tuples(inputs)
        if any(
            isinstance(one, array_slicing.TensorflowSparseWrapper) for one in tree.flatten(inputs)
        ):
            raise Refused("Sparse arrays cannot feed several models.", "Give dense arrays.")
        self._inputs = tree.map_structure(tf.convert_to_tensor, inputs)
        self._rows, self._size = int(adapter._num_samples), int(adapter._batch_size)
        self.ordered = seeds is not None
        self._orders = [
            _order(self._rows, self._size, adapter._shuffle, one)
            for one in ([seed] if seeds is None else seeds)
        ]
        self.equal = self._rows % self._size == 0

    def first(self) -> Any:
        return self._gathered(np.arange(min(self._size, self._rows)))

    def epoch(self) -> Iterator[Chunk]:
        orders = np.stack([_read(order) for order in self._orders])
        full = self._rows // self._size
        most = _most(self.first()) // len(self._orders) or 1
        for begin in range(0, full, most):
            end = min(begin + most, full)
            yield self._chunk(orders[:, begin * self._size : end * self._size], end - begin)
        if full * self._size < self._rows:
            yield self._chunk(orders[:, full * self._size :], 1)

    def _chunk(self, orders: Any, steps: int) -> Chunk:
        models = len(orders)
        rows = orders.reshape(models, steps, -1).transpose(1, 0, 2)
        data = self._gathered(rows if self.ordered else rows[:, 0])
        return Chunk(data, steps, self.ordered)

    def _gathered(self, rows: Any) -> Any:
        return tree.map_structure(lambda one: tf.gather(one, rows), self._inputs)


def _order(rows: int, size: int, shuffle: Any, seed: int | None) -> Any:
    """The numbers of the rows, as Keras would take them: a data set of batches."""
    with contextlib.ExitStack() as stack:
        if seed is not None:
            stack.enter_context(_global_seed(seed))
        adapter = ArrayDataAdapter(np.arange(rows), batch_size=size, shuffle=shuffle)
        return adapter.get_tf_dataset()


def _read(order: Any) -> Any:
    return np.concatenate([np.ravel(tree.flatten(one)[0]) for one in order])


@contextlib.contextmanager
def _global_seed(seed: int) -> Iterator[None]:
    """TensorFlow's seed, for the graphs that are made meanwhile."""
    from tensorflow.python.eager import context

    kept = context.global_seed()
    tf.random.set_seed(seed)
    try:
        yield
    finally:
        tf.random.set_seed(kept)


def _dense(tensor: Any) -> Any:
    if isinstance(tensor, (tf.SparseTensor, tf.RaggedTensor)):
        raise Refused("Sparse and ragged batches cannot feed several models.", "Make them dense.")
    return None if isinstance(tensor, tf.experimental.Optional) else tf.convert_to_tensor(tensor)


def _joined(batches: list[Any]) -> Chunk:
    return Chunk(tree.map_structure(lambda *parts: tf.stack(parts), *batches), len(batches))


def _shapes(batch: Any) -> list[Any]:
    return [one.shape for one in tree.flatten(batch)]


def _most(batch: Any) -> int:
    """How many batches like this one make a chunk."""
    size = sum(int(tf.size(one)) * one.dtype.size for one in tree.flatten(batch))
    return max(1, _BYTES // max(1, int(size)))
