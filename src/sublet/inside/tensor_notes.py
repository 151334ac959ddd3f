"""What Keras hangs on tensors: masks, and the logits that probabilities were made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from keras.src import backend

_BY_OPERATION: Mapping[str, Callable[[Any], Any]] = {
    "Softmax": tf.nn.softmax,
    "Sigmoid": tf.sigmoid,
}


def with_mask(tensor: Any, mask: Any) -> Any:
    """The tensor with Keras' mask on it."""
    if mask is not None:
        tensor = tf.identity(tensor)  # The mask is this call's alone.
        backend.set_keras_mask(tensor, mask)
    return tensor


def mask_of(tensor: Any) -> Any:
    """The mask that Keras has hung on a tensor; None without one."""
    return backend.get_keras_mask(tensor)


def logits_of(tensor: Any) -> dict[str, Any]:
    """What a softmax or sigmoid made this tensor of, at most one, by how it is known: from a note
    of Keras' ("") or from the kind of TensorFlow's operation. Keras' losses take it in place of the
    probabilities, which they would have to clip."""
    if hasattr(tensor, "_keras_logits"):
        return {"": tensor._keras_logits}
    operation = getattr(tensor, "op", None)  # Eager tensors have none.
    if operation is None or operation.type not in _BY_OPERATION:
        return {}
    return {operation.type: operation.inputs[0]}


def with_logits(tensor: Any, logits: Mapping[str, Any]) -> Any:
    """The tensor, in which `logits_of` finds these."""
    for kind, one in logits.items():
        if kind:
            made = _BY_OPERATION[kind](one)
            tensor = with_mask(made, mask_of(tensor))
        else:
            tensor = with_mask(tf.identity(tensor), mask_of(tensor))
            tensor._keras_logits = one
    return tensor
