"""LSTM, GRU and SimpleRNN: the inputs of all time steps in one matrix product, and then one product
for each step with the states of all models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.src import backend

from ..values import Value
from . import generic
from .dense import between, product_of_shared
from .dropout import uniform
from .site import Site

LAYERS = frozenset({"LSTM", "GRU", "SimpleRNN", "Bidirectional"})
_Step = Callable[[Any, Any], tuple[Any, list[Any]]]


def call(site: Site, args: Any, kwargs: Any) -> Any:
    """What the layer puts out."""
    layer = site.layer
    if not _plain(site, args, kwargs):
        return generic.call(site, args, kwargs)
    if type(layer).__name__ == "Bidirectional":
        return _both_ways(site, args[0])
    found = _run(site, args[0])
    return found if layer.return_state else found[0]


def _plain(site: Site, args: Any, kwargs: Any) -> bool:
    """Whether the layer is called with a sequence alone, and computed as is usual."""
    layer = site.layer
    if len(args) != 1 or any(generic.values(kwargs)):
        return False
    layers = [layer]
    if type(layer).__name__ == "Bidirectional":
        layers = [layer.forward_layer, layer.backward_layer]
        if any(type(one).__name__ not in LAYERS or one.return_state for one in layers):
            return False
    return all(_is_usual(one) for one in layers)


def _is_usual(layer: Any) -> bool:
    cell = layer.cell
    first = getattr(cell, "implementation", 2) == 1 and (cell.dropout or cell.recurrent_dropout)
    return not (layer.unroll or layer.stateful or layer.activity_regularizer or first)


def _both_ways(site: Site, value: Value) -> Any:
    layer = site.layer
    forward, backward = (
        _run(dataclasses.replace(site, layer=one), value)[0]
        for one in (layer.forward_layer, layer.backward_layer)
    )
    one, other = forward.tensor, backward.tensor
    if layer.return_sequences:
        other = tf.reverse(other, [2])
    if layer.merge_mode == "concat":
        found = tf.concat([one, other], -1)
    elif layer.merge_mode == "sum":
        found = one + other
    elif layer.merge_mode == "ave":
        found = (one + other) / 2
    elif layer.merge_mode == "mul":
        found = one * other
    else:
        return [forward, Value(other, True, forward.mask)]
    return Value(found, True, forward.mask)


def _run(site: Site, value: Value) -> list[Value]:
    """The outputs, and the states at the end."""
    layer, cell, models = site.layer, site.layer.cell, site.models
    dtype = cell.compute_dtype
    rows = tf.shape(value.tensor)[1 if value.stacked else 0]
    value, kept = _dropped(site, cell, value, rows)
    x = tf.cast(value.tensor, dtype)
    kernel = site.weight(cell.kernel, dtype)
    x = tf.einsum("kbti,kio->kbto", x, kernel) if value.stacked else product_of_shared(x, kernel)
    step, x = _STEPS[type(layer).__name__](site, cell, x, kept)
    states = [tf.zeros([models, rows, cell.units], dtype) for _ in layer.state_size]
    mask = None
    if value.mask is not None:
        mask = tf.transpose(value.mask.along(models), [2, 0, 1])[..., None]
    last, outputs, states = backend.rnn(
        step,
        tf.transpose(x, [2, 0, 1, 3]),
        states,
        go_backwards=layer.go_backwards,
        mask=mask,
        input_length=x.shape[2],
        time_major=True,
        zero_output_for_mask=layer.zero_output_for_mask,
        return_all_outputs=layer.return_sequences,
    )
    if layer.return_sequences:
        found = Value(tf.transpose(outputs, [1, 2, 0, 3]), True, value.mask)
    else:
        found = Value(last, True)
    return [found, *(Value(one, True) for one in states)]


def _dropped(site: Site, cell: Any, value: Value, rows: Any) -> tuple[Value, Any]:
    """The input with what is dropped of it, and what is dropped of the states: drawn once for all
    time steps, in training or not, as Keras does."""
    dtype = cell.compute_dtype
    if cell.dropout:
        kept = _mask(site, cell, [rows, value.tensor.shape[-1]], cell.dropout)
        if site.training:
            x = tf.cast(value.along(site.models), dtype)
            value = Value(x * kept[:, :, None], True, value.mask)
    kept = None
    if cell.recurrent_dropout:
        kept = _mask(site, cell, [rows, cell.units], cell.recurrent_dropout)
    return value, kept if site.training else None


def _mask(site: Site, cell: Any, shape: list[Any], rate: float) -> Any:
    drawn = uniform(site, cell.seed_generator, tf.stack(shape), tf.as_dtype(cell.compute_dtype))
    return tf.where(drawn >= rate, tf.cast(1 / (1 - rate), drawn.dtype), 0)


def _lstm(site: Site, cell: Any, x: Any, kept: Any) -> tuple[_Step, Any]:
    recurrent = site.weight(cell.recurrent_kernel)
    if cell.use_bias:
        x += between(site.weight(cell.bias), 4)

    def step(inputs: Any, states: Any) -> tuple[Any, list[Any]]:
        h, c = states
        z = inputs + tf.matmul(h if kept is None else h * kept, recurrent)
        i, f, g, o = tf.split(z, 4, -1)
        gate = cell.recurrent_activation
        c = gate(f) * c + gate(i) * cell.activation(g)
        h = gate(o) * cell.activation(c)
        return h, [h, c]

    return step, x


def _gru(site: Site, cell: Any, x: Any, kept: Any) -> tuple[_Step, Any]:
    recurrent, units = site.weight(cell.recurrent_kernel), cell.units
    bias = None
    if cell.use_bias:
        weights = site.weight(cell.bias)
        if cell.reset_after:
            weights, bias = weights[:, 0], weights[:, 1][:, None]
        x += between(weights, 4)

    def step(inputs: Any, states: Any) -> tuple[Any, list[Any]]:
        (h,) = states
        before = h if kept is None else h * kept
        x_z, x_r, x_h = tf.split(inputs, 3, -1)
        if cell.reset_after:
            inner = tf.matmul(before, recurrent)
            if bias is not None:
                inner += bias
            h_z, h_r, h_h = tf.split(inner, 3, -1)
        else:
            inner = tf.matmul(before, recurrent[..., : 2 * units])
            h_z, h_r = tf.split(inner, 2, -1)
        z, r = cell.recurrent_activation(x_z + h_z), cell.recurrent_activation(x_r + h_r)
        h_h = r * h_h if cell.reset_after else tf.matmul(r * before, recurrent[..., 2 * units :])
        h = z * h + (1 - z) * cell.activation(x_h + h_h)
        return h, [h]

    return step, x


def _simple(site: Site, cell: Any, x: Any, kept: Any) -> tuple[_Step, Any]:
    recurrent = site.weight(cell.recurrent_kernel)
    if cell.use_bias:
        x += between(site.weight(cell.bias), 4)

    def step(inputs: Any, states: Any) -> tuple[Any, list[Any]]:
        (h,) = states
        h = inputs + tf.matmul(h if kept is None else h * kept, recurrent)
        if cell.activation is not None:
            h = cell.activation(h)
        return h, [h]

    return step, x


_STEPS: dict[str, Callable[..., tuple[_Step, Any]]] = {
    "LSTM": _lstm,
    "GRU": _gru,
    "SimpleRNN": _simple,
}
