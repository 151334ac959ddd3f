"""The data of a sweep: checked once, and given to all trials in the same batches.

The order of the rows of an epoch depends on the seed and on the epoch alone, and on the trial's own
seed if each trial is to have an order of its own. So a trial sees the same batches in a stack, in a
worker of its own, and when it goes on after a crash.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..stacks.batches import ArrayBatches, Batches, DatasetBatches
from ..training.refused import Refused

_HINT = "Give (x, y) as arrays, or a tf.data.Dataset of batches."


class Data:
    """Arrays or a dataset of (x, y) or (x, y, sample weights). Frozen once it is made.

    :param shuffle: whether the rows of arrays come in another order in each epoch; "each" if it is
        another one for each trial, too.
    """

    def __init__(
        self,
        data: Any,
        validation: Any,
        batch_size: int,
        shuffle: bool | str,
        seed: int,
        class_weight: Mapping[int, float] | None,
    ) -> None:
        self._arrays = None if _is_dataset(data) else _arrays(data, "data")
        self._dataset = data if self._arrays is None else None
        if self._dataset is not None:
            _check_dataset(self._dataset, "data")
            if shuffle == "each":
                raise Refused(
                    "A tf.data.Dataset has one order for all trials.",
                    'Give arrays, or leave shuffle="each" out.',
                )
        self._validation = validation
        if validation is not None:
            if _is_dataset(validation):
                _check_dataset(validation, "validation_data")
            else:
                self._validation = _arrays(validation, "validation_data")
        self._batch_size, self._shuffle, self._seed = batch_size, shuffle, seed
        self._class_weight = None if class_weight is None else _class_weight(class_weight)
        if self._class_weight is not None and self._arrays is not None:
            self._arrays = _weighted(self._arrays, self._class_weight)

    @property
    def sendable(self) -> bool:
        """Whether it can be sent to another process: arrays can, datasets cannot."""
        return self._dataset is None and not _is_dataset(self._validation)

    @property
    def has_validation(self) -> bool:
        return self._validation is not None

    @property
    def shapes(self) -> Any:
        """What the data looks like, as plain values."""
        if self._arrays is None:
            return str(self._dataset.element_spec)  # type: ignore[union-attr]
        return _plain_shapes(self._arrays[0]) + _plain_shapes(self._arrays[1])

    def some(self, rows: int = 64) -> Any:
        """The inputs of the first rows, as a batch."""
        if self._arrays is not None:
            return _map(lambda part: part[:rows], self._arrays[0])
        batch = next(iter(self._dataset))  # type: ignore[arg-type]
        return _map(lambda part: part[:rows], batch[0])

    def batches(self, epoch: int, trials: Sequence[int]) -> Batches:
        """The batches of an epoch, counted from 1, for these trials, each known by its own seed."""
        if self._arrays is None:
            weighted = self._class_weight is not None
            return DatasetBatches(self._weighted_dataset() if weighted else self._dataset)
        orders: Any = None
        if self._shuffle == "each":
            orders = [self._order(epoch, trial) for trial in trials]
        elif self._shuffle:
            orders = self._order(epoch)
        return ArrayBatches(self._arrays, self._batch_size, orders)

    def validation_batches(self) -> Batches | None:
        """The batches for validation; None without any."""
        if self._validation is None:
            return None
        if _is_dataset(self._validation):
            return DatasetBatches(self._validation)
        return ArrayBatches(self._validation, self._batch_size)

    def _order(self, epoch: int, *trial: int) -> Any:
        rows = len(_leaves(self._arrays)[0])
        return np.random.default_rng((self._seed, epoch, *trial)).permutation(rows)

    def _weighted_dataset(self) -> Any:
        import tensorflow as tf

        weights = self._class_weight
        assert weights is not None
        table = tf.constant([weights.get(label, 1.0) for label in range(max(weights) + 1)])

        def weigh(x: Any, y: Any, *given: Any) -> Any:
            one_hot = y.shape.rank is not None and y.shape.rank > 1 and y.shape[-1] not in (None, 1)
            labels = tf.argmax(y, -1) if one_hot else tf.cast(tf.reshape(y, [-1]), tf.int64)
            each = tf.gather(table, tf.minimum(labels, len(table) - 1))
            each = tf.where(labels < len(table), each, 1.0)
            return x, y, each * tf.cast(given[0], tf.float32) if given else each

        return self._dataset.map(weigh)  # type: ignore[union-attr]


def _is_dataset(data: Any) -> bool:
    return any(
        kind.__name__ == "DatasetV2" and kind.__module__.startswith("tensorflow.")
        for kind in type(data).__mro__
    )


def _check_dataset(dataset: Any, name: str) -> None:
    if int(dataset.cardinality()) == -1:  # tf.data.INFINITE_CARDINALITY
        raise Refused(f"{name} has no end.", "Say how much an epoch is: dataset.take(steps).")
    spec = dataset.element_spec
    if not isinstance(spec, tuple) or len(spec) not in (2, 3):
        raise Refused(f"{name} has elements of another form than (x, y).", _HINT)


def _arrays(data: Any, name: str) -> tuple[Any, ...]:
    if inspect.isgenerator(data) or (hasattr(data, "__next__") and not hasattr(data, "shape")):
        raise Refused(
            f"{name} is a generator: it cannot be read once for each epoch.",
            "Give arrays, or a tf.data.Dataset (tf.data.Dataset.from_generator makes one).",
        )
    if not isinstance(data, tuple | list) or len(data) not in (2, 3) or data[1] is None:
        raise Refused(f"{name} is {type(data).__name__}, and not (x, y).", _HINT)
    arrays = tuple(_map(_array, part) for part in data if part is not None)
    lengths: dict[int, str] = {}
    for label, part in zip(("x", "y", "sample weights"), arrays, strict=False):
        for leaf in _leaves(part):
            if leaf.ndim == 0 or leaf.dtype == object:
                raise Refused(f"{label} of {name} is no array of rows.", _HINT)
            lengths.setdefault(len(leaf), label)
    if len(lengths) > 1:
        said = ", ".join(f"{label} has {rows} rows" for rows, label in lengths.items())
        raise Refused(f"{name} is of unequal length: {said}.", "Give as many of each.")
    if not lengths or 0 in lengths:
        raise Refused(f"{name} has no rows.", _HINT)
    return arrays


def _array(part: Any) -> Any:
    """As Keras takes it: numbers that are not whole have its precision."""
    array = np.asarray(part)
    if array.dtype.kind != "f":
        return array
    import keras

    return array.astype(keras.config.floatx(), copy=False)


def _map(function: Any, part: Any) -> Any:
    """The same structure of dicts, tuples and lists, with the function's results as leaves."""
    if isinstance(part, dict):
        return {name: _map(function, one) for name, one in part.items()}
    if isinstance(part, tuple):
        return tuple(_map(function, one) for one in part)
    if isinstance(part, list) and part and hasattr(part[0], "shape"):
        return tuple(_map(function, one) for one in part)
    return function(part)


def _leaves(part: Any) -> list[Any]:
    if isinstance(part, dict):
        return [leaf for one in part.values() for leaf in _leaves(one)]
    if isinstance(part, tuple):
        return [leaf for one in part for leaf in _leaves(one)]
    return [part]


def _plain_shapes(part: Any) -> list[list[int]]:
    return [list(leaf.shape) for leaf in _leaves(part)]


def _class_weight(given: Mapping[int, float]) -> dict[int, float]:
    try:
        weights = {int(label): float(weight) for label, weight in given.items()}
    except (TypeError, ValueError, AttributeError):
        weights = {}
    if not weights or min(weights) < 0:
        raise Refused(f"class_weight is {given!r}.", "Give a dict: {0: 1.0, 1: 5.0}.")
    return weights


def _weighted(arrays: tuple[Any, ...], weights: dict[int, float]) -> tuple[Any, ...]:
    """The arrays with sample weights, as Keras makes them of class weights."""
    y = arrays[1]
    if not hasattr(y, "shape"):
        raise Refused("class_weight is for models with one output.", "Give sample weights.")
    labels = y.argmax(-1) if y.ndim > 1 and y.shape[-1] > 1 else y.reshape(len(y))
    each = np.array([weights.get(int(label), 1.0) for label in labels], "float32")
    return (*arrays[:2], each * arrays[2] if len(arrays) > 2 else each)
