"""Embeddings: rows of each model's own table.

A gradient of some rows is not the same for optimizers as one of the whole table: Keras squares the
parts of a row that occurs twice before it adds them. So these gradients stay rows here, too.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..values import Value
from . import generic
from .site import Site


def call(site: Site, args: Any, kwargs: Any) -> Any:
    """What the layer puts out."""
    layer, value = site.layer, args[0]
    lora = getattr(layer, "lora_enabled", False)
    plain = layer.quantization_mode is None and layer.activity_regularizer is None and not lora
    if not plain or len(args) > 1 or kwargs:
        return generic.call(site, args, kwargs)
    rows = value.tensor
    if rows.dtype not in (tf.int32, tf.int64):
        rows = tf.cast(rows, tf.int32)
    table = tf.stop_gradient(site.value(layer._embeddings))
    found = tf.gather(table, rows, axis=1, batch_dims=1 if value.stacked else 0)
    found = site.looked_up(layer._embeddings, Value(rows, value.stacked), found)
    mask = None
    if layer.mask_zero:
        mask = Value(tf.not_equal(value.tensor, 0), value.stacked)
    return Value(tf.cast(found, layer.compute_dtype), True, mask)
