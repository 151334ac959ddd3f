"""What flows through a stack: tensors that all models share, and tensors with a model axis."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf
from keras.src import backend


@dataclasses.dataclass(frozen=True)
class Value:
    """A tensor between layers, with the mask that Keras hangs on it."""

    tensor: Any
    stacked: bool
    """Whether its first axis counts the models. If not, it is the same in all of them."""
    mask: Value | None = None

    def along(self, models: int) -> Any:
        """The tensor with a model axis, whether it had one or not."""
        if self.stacked:
            return self.tensor
        return tf.repeat(self.tensor[None], models, axis=0)

    def folded(self, models: int) -> Any:
        """The tensor as one batch: the rows of the first model, those of the second, and so on."""
        return with_mask(
            fold(self.along(models)), None if self.mask is None else fold(self.mask.along(models))
        )

    def of(self, place: int) -> Any:
        """The tensor of one model, as Keras has it."""
        mask = None if self.mask is None else self.mask.of(place)
        return with_mask(self.tensor[place] if self.stacked else self.tensor, mask)

    @property
    def plain(self) -> Any:
        """A shared tensor as Keras has it."""
        return with_mask(self.tensor, None if self.mask is None else self.mask.tensor)


def fold(tensor: Any) -> Any:
    """Make one axis of models and rows."""
    shape, known = tf.shape(tensor), tensor.shape
    rows = None if known[1] is None else known[0] * known[1]
    folded = tf.reshape(tensor, tf.concat([[-1 if rows is None else rows], shape[2:]], 0))
    folded.set_shape([rows, *known[2:]])
    return folded


def unfold(tensor: Any, models: int) -> Any:
    """The inverse of `fold`."""
    shape, known = tf.shape(tensor), tensor.shape
    rows = None if known[0] is None else known[0] // models
    unfolded = tf.reshape(tensor, tf.concat([[models, -1 if rows is None else rows], shape[1:]], 0))
    unfolded.set_shape([models, rows, *known[1:]])
    return unfolded


def with_mask(tensor: Any, mask: Any) -> Any:
    """The tensor with Keras' mask on it."""
    if mask is not None:
        tensor = tf.identity(tensor)  # The mask is this call's alone.
        backend.set_keras_mask(tensor, mask)
    return tensor


def mask_of(tensor: Any) -> Any:
    """The mask that Keras has hung on a tensor; None without one."""
    return backend.get_keras_mask(tensor)
