"""Dense layers: one matrix product of all models."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ...tensor_notes import logits_of
from ..values import Value
from . import generic
from .site import Site


def call(site: Site, args: Any, kwargs: Any) -> Any:
    """What the layer puts out."""
    layer, (value,) = site.layer, args
    plain = layer.activity_regularizer is None and layer.quantization_mode is None
    if not plain or kwargs or getattr(layer, "lora_enabled", False):
        return generic.call(site, args, kwargs)
    x = tf.cast(value.tensor, layer.compute_dtype)
    kernel = site.weight(layer._kernel)
    if not value.stacked:
        x = product_of_shared(x, kernel)
    elif x.shape.rank == 3:
        x = tf.matmul(x, kernel)
    else:
        x = _product_of_rows(x, kernel)
    if layer.bias is not None:
        x += between(site.weight(layer.bias), x.shape.rank)
    if layer.activation is not None:
        x = layer.activation(x)
    return Value(x, True, value.mask, logits_of(x))


def _product_of_rows(x: Any, kernel: Any) -> Any:
    """The same of inputs with more axes. Not with an ellipsis of einsum, whose gradient would have
    each row's own."""
    shape = tf.shape(x)
    rows = tf.reshape(x, [kernel.shape[0], -1, x.shape[-1]])
    found = tf.reshape(tf.matmul(rows, kernel), tf.concat([shape[:-1], kernel.shape[-1:]], 0))
    return tf.ensure_shape(found, [*x.shape[:-1], kernel.shape[-1]])


def product_of_shared(x: Any, kernel: Any) -> Any:
    """What all models make of the same input, as one wide product: [models, rows, ..., outputs]."""
    models, _, outputs = kernel.shape
    wide = tf.reshape(tf.transpose(kernel, [1, 0, 2]), [-1, models * outputs])
    found = tf.tensordot(x, wide, 1)
    axes = x.shape.rank
    found = tf.reshape(found, tf.concat([tf.shape(x)[:-1], [models, outputs]], 0))
    found = tf.transpose(found, [axes - 1, *range(axes - 1), axes])
    found.set_shape([models, *x.shape[:-1], outputs])
    return found


def between(weights: Any, rank: int) -> Any:
    """Weights of all models with axes for rows and more, to be added to a tensor of this rank."""
    missing = rank - weights.shape.rank
    return tf.reshape(weights, [weights.shape[0], *[1] * missing, *weights.shape[1:]])
