"""Dropout: the mask of each model is the one that the model alone would draw."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow.random import _cast_seed

from ..values import Value
from .dense import between
from .site import Site

LAYERS = frozenset({"Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"})


def call(site: Site, args: Any, kwargs: Any) -> Any:
    """What the layer puts out."""
    layer, value = site.layer, args[0]
    if not site.training:
        return value
    x = tf.cast(value.along(site.models), layer.compute_dtype)
    rates = between(site.number(layer, "rate"), x.shape.rank)
    shape = tf.shape(x)[1:]
    spatial = getattr(layer, "_get_noise_shape", None)
    noise = layer.noise_shape if spatial is None else spatial(x[0])
    if noise is not None:
        shape = tf.stack([shape[i] if one is None else one for i, one in enumerate(noise)])
    drawn = uniform(site, layer.seed_generator, shape, x.dtype)
    scales = tf.cast(tf.math.divide_no_nan(tf.ones_like(rates), 1 - rates), x.dtype)
    kept = tf.where(drawn >= tf.cast(rates, x.dtype), x * scales, 0)
    return Value(tf.ensure_shape(kept, x.shape), True, value.mask)


def uniform(site: Site, generator: Any, shape: Any, dtype: Any) -> Any:
    """Random numbers of each model, from its own seed. One operation for each model: none of
    TensorFlow's draws from several seeds."""
    state = site.value(generator.state)
    seeds = tf.unstack(_cast_seed(state))
    site.changed[id(generator.state)] = state + tf.constant([0, 1], state.dtype)
    return tf.stack([tf.random.stateless_uniform(shape, seed, dtype=dtype) for seed in seeds])
