"""Where in its data a training stands, and how it gets there again.

In arrays, the epoch and the step say it. In a `tf.data` set, the state of its iterator does, which
holds what has been read ahead.
"""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ..array_input import ArrayInput
from ..refused import Refused
from .directory import Checkpoint, Directory

Step = tuple[int, int, Any]
"""What Keras takes for an execution: its first step, its last, and the iterator with batches."""


Seed = Callable[[], int]
"""Draws the seed of the order of rows."""


class Batches(Protocol):
    """The batches of a training, one epoch after the other."""

    iterator: Any
    """What Keras has for them: a TFEpochIterator."""

    def epoch(self, epoch: int, step: int, found: Checkpoint | None) -> Iterator[Step]:
        """Those of an epoch from this step on; `found` is what the training begins with, if it is
        resumed here."""

    def described(self) -> dict[str, Any]:
        """What has to be the same when the training is resumed."""

    def fields(self) -> dict[str, Any]:
        """What a checkpoint has to hold beside epoch and step."""

    def files(self, directory: Directory) -> list[str]:
        """The same, in files."""

    def spec(self) -> Any:
        """What is known of all batches."""


_OF_DATA = ("x", "y", "sample_weight", "batch_size", "shuffle", "class_weight")


def batches_of(make: Callable[..., Any], options: dict[str, Any], seed: Seed) -> Batches:
    """Those that Keras would make for `fit` with `make` (TFEpochIterator) and these options. Raises
    Refused if it cannot be said where in its data a training stands."""
    from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

    given = options["x"]
    batches, iterator = array_batches(make, options, seed)
    if batches is not None:
        return batches
    if isinstance(iterator.data_adapter, TFDatasetAdapter):
        return DatasetBatches(iterator)
    raise Refused(
        f"No checkpoint can be made: it is not known where in {type(given).__name__} data a "
        "training stands.",
        "Give arrays or a tf.data set.",
    )


def array_batches(
    make: Callable[..., Any], options: dict[str, Any], seed: Seed
) -> tuple[ArrayBatches | None, Any]:
    """Those of arrays, in the order of a seed; None for other data. Then what `make` has made."""
    from keras.src.trainers.data_adapters import get_data_adapter
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    asked = {name: options.pop(name, None) for name in _OF_DATA}
    adapter = get_data_adapter(**asked, steps_per_epoch=options.get("steps_per_epoch"))
    if not isinstance(adapter, ArrayDataAdapter):
        return None, make(x=adapter, **options)
    arrays = ArrayInput(adapter, seed())
    adapter.get_tf_dataset = arrays.dataset
    iterator = make(x=adapter, **options)
    return ArrayBatches(iterator, arrays), iterator


class ArrayBatches:
    """Those of arrays."""

    def __init__(self, iterator: Any, arrays: ArrayInput) -> None:
        self.iterator = iterator
        self._arrays = arrays
        self._open: Any = None

    def epoch(self, epoch: int, step: int, found: Checkpoint | None) -> Iterator[Step]:
        made, steps = self.iterator, self.iterator.num_batches
        if self._open is None:
            data = self._arrays.dataset(epoch * steps + step)
            self._open = iter(made._distribute_strategy.experimental_distribute_dataset(data))
        for first in range(step, steps, made.steps_per_execution):
            yield first, first + made.steps_per_execution - 1, self._open

    def described(self) -> dict[str, Any]:
        arrays = self._arrays
        return {
            "rows": arrays.rows,
            "batch_size": arrays.batch,
            "steps_per_epoch": self.iterator.num_batches,
            "shuffle": arrays.shuffle,
        }

    def fields(self) -> dict[str, Any]:
        return {"seed": self._arrays.seed}

    def files(self, directory: Directory) -> list[str]:
        return []

    def spec(self) -> Any:
        return self._arrays.dataset().element_spec


class DatasetBatches:
    """Those of a `tf.data` set, in the same order as Keras has them: it begins the set anew with
    each epoch, unless it is told how many steps an epoch has."""

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator
        self._last: Any = None
        """The iterator that was opened last, also if it has come to its end."""
        self._passes = 0
        """How many iterators were opened in this training."""
        self._strict = _strict(iterator._distributed_dataset)

    def epoch(self, epoch: int, step: int, found: Checkpoint | None) -> Iterator[Step]:
        made = self.iterator
        if found is not None:
            self._resume(found)
            if step and made._current_iterator is None:
                return  # The set had come to its end, and validation was interrupted.
        if step == 0 and (made._current_iterator is None or made.steps_per_epoch is None):
            self._begin()
        while not made.num_batches or step < made.num_batches:
            if made._num_batches and made._steps_seen >= made._num_batches:
                if made.steps_per_epoch:
                    made._interrupted_warning()
                break
            made._steps_seen += made.steps_per_execution
            yield step, step + made.steps_per_execution - 1, made._current_iterator
            step += made.steps_per_execution
        if made._num_batches and made._steps_seen >= made._num_batches:
            # So does Keras. A set that is shuffled anew each time counts how often it has begun.
            self._begin()

    def described(self) -> dict[str, Any]:
        steps = self.iterator.steps_per_epoch
        return {"tf.data set": str(self.spec()), "steps_per_epoch": steps}

    def fields(self) -> dict[str, Any]:
        made = self.iterator
        return {
            "seen": made._steps_seen,
            "batches": made._num_batches,
            "open": made._current_iterator is not None,
            "passes": self._passes,
        }

    def files(self, directory: Directory) -> list[str]:
        import tensorflow as tf

        if self._last is None:
            return []
        path = os.path.join(directory.scratch, "iterator")
        try:
            tf.train.Checkpoint(iterator=self._last).write(path)
        except (tf.errors.OpError, NotImplementedError) as wrong:
            reason = str(getattr(wrong, "message", wrong)).strip().splitlines()[0]
            raise Refused(
                f"No checkpoint can be made: the state of this tf.data set cannot be saved "
                f"({reason}).",
                "Give arrays, or a set without Python functions and operations that keep a state.",
            ) from None
        return glob.glob(f"{glob.escape(path)}.*")

    def spec(self) -> Any:
        return self._strict.element_spec

    def _begin(self) -> None:
        made = self.iterator
        self._last = made._current_iterator = iter(self._strict)
        self._passes += 1
        made._steps_seen = 0

    def _resume(self, found: Checkpoint) -> None:
        import tensorflow as tf

        made, fields = self.iterator, found.fields
        if fields["open"]:
            self._begin()
            with tempfile.TemporaryDirectory() as directory:
                path = found.extract(directory, "iterator")
                tf.train.Checkpoint(iterator=self._last).read(path)
            self._passes = fields["passes"]
        else:
            # One that has come to its end does not say how its set is shuffled the next time: the
            # set does, which knows how often it has begun.
            for _ in range(fields["passes"]):
                self._begin()
            made._current_iterator = None
        made._steps_seen, made._num_batches = fields["seen"], fields["batches"]


def _strict(dataset: Any) -> Any:
    """The set, which fails to be saved if not all of its state can be, unless its program has said
    otherwise."""
    import tensorflow as tf

    policy = tf.data.experimental.ExternalStatePolicy
    if dataset.options().experimental_external_state_policy == policy.IGNORE:
        return dataset
    options = tf.data.Options()
    options.experimental_external_state_policy = policy.FAIL
    return dataset.with_options(options)
