"""Convolutions. Of an input that all models share, one convolution with the filters of all models;
else one for each model: on processors these were measured to be faster than grouped convolutions
and than patches with a matrix product, but for many very small ones."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from keras.src import backend, ops

from ...tensor_notes import logits_of
from ..values import Value
from . import generic
from .dense import between
from .site import Site

_WIDE = frozenset({"Conv1D", "Conv2D", "Conv3D"})
LAYERS = _WIDE | {
    "Conv1DTranspose",
    "Conv2DTranspose",
    "Conv3DTranspose",
    "DepthwiseConv1D",
    "DepthwiseConv2D",
    "SeparableConv1D",
    "SeparableConv2D",
}


def call(site: Site, args: Any, kwargs: Any) -> Any:
    """What the layer puts out."""
    layer, value = site.layer, args[0]
    lora = getattr(layer, "lora_enabled", False)
    if layer.activity_regularizer is not None or lora or layer.data_format != "channels_last":
        return generic.each(site, args, kwargs)
    x = tf.cast(value.tensor, layer.compute_dtype)
    wide = type(layer).__name__ in _WIDE and layer.groups == 1
    x = _of_shared(site, x) if not value.stacked and wide else _of_each(site, value)
    if layer.use_bias:
        x += between(site.weight(layer.bias), x.shape.rank)
    if layer.activation is not None:
        x = layer.activation(x)
    return Value(x, True, None, logits_of(x))


def _of_shared(site: Site, x: Any) -> Any:
    """One convolution, with the filters of all models side by side."""
    layer = site.layer
    kernel = site.weight(layer._kernel)
    rank, models = kernel.shape.rank, site.models
    side_by_side = tf.transpose(kernel, [*range(1, rank - 1), 0, rank - 1])
    filters = tf.reshape(side_by_side, [*kernel.shape[1:-1], models * kernel.shape[-1]])
    padding = layer.padding
    if padding == "causal":
        x, padding = ops.pad(x, layer._compute_causal_padding()), "valid"
    found = ops.conv(
        x, filters, list(layer.strides), padding, layer.data_format, layer.dilation_rate
    )
    shape = tf.concat([tf.shape(found)[:-1], [models, kernel.shape[-1]]], 0)
    axes = found.shape.rank
    split = tf.transpose(tf.reshape(found, shape), [axes - 1, *range(axes - 1), axes])
    split.set_shape([models, *found.shape[:-1], kernel.shape[-1]])
    return split


def _of_each(site: Site, value: Value) -> Any:
    """One convolution for each model."""
    layer, variables = site.layer, site.layer.weights
    states = [tf.unstack(site.value(one)) for one in variables]
    inputs = tf.unstack(value.along(site.models))
    kept = layer.use_bias, layer.activation
    found = []
    try:
        # Added for all models at once, later.
        layer.use_bias, layer.activation = False, None
        for x, *state in zip(inputs, *states, strict=True):
            with backend.StatelessScope(list(zip(variables, state, strict=True))):
                found.append(layer(ops.cast(x, layer.compute_dtype)))
    finally:
        layer.use_bias, layer.activation = kept
    return tf.stack(found)
