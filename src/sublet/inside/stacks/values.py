"""What flows through a stack: tensors that all models share, and tensors with a model axis."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from ..tensor_notes import with_logits, with_mask


@dataclasses.dataclass(frozen=True)
class Value:
    """A tensor between layers, with the mask that Keras hangs on it."""

    tensor: Any
    stacked: bool
    """Whether its first axis counts the models. If not, it is the same in all of them."""
    mask: Value | None = None
    logits: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What `logits_of` has found for it, as it is stacked itself."""

    def along(self, models: int) -> Any:
        """The tensor with a model axis, whether it had one or not."""
        if self.stacked:
            return self.tensor
        return tf.repeat(self.tensor[None], models, axis=0)

    def folded(self, models: int) -> Any:
        """The tensor as one batch: the rows of the first model, those of the second, and so on."""
        mask = None if self.mask is None else fold(self.mask.along(models))
        tensor = with_mask(fold(self.along(models)), mask)
        return with_logits(tensor, {kind: fold(one) for kind, one in self.logits.items()})

    def of(self, place: int) -> Any:
        """The tensor of one model, as Keras has it."""
        if not self.stacked:
            return self.plain
        mask = None if self.mask is None else self.mask.of(place)
        logits = {kind: one[place] for kind, one in self.logits.items()}
        return with_logits(with_mask(self.tensor[place], mask), logits)

    @property
    def plain(self) -> Any:
        """A shared tensor as Keras has it."""
        mask = None if self.mask is None else self.mask.tensor
        return with_logits(with_mask(self.tensor, mask), self.logits)


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
