"""Random numbers that are the same for every row, so that it can be seen whether rows depend on
each other.

While in the body of `still_noise`, what a program draws varies along all dimensions but the first,
and is the same in each run of the same graph. BatchNormalization uses its moving statistics, as it
would compare rows. What shuffles rows turns their order round.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

_DRAWN = ("Random", "Multinomial", "TruncatedNormal", "Shuffle", "Stateful", "RngReadAndSkip")
_HARMLESS = {
    *("RandomGammaGrad", "StatefulPartitionedCall"),
    *("StatelessRandomGetAlg", "StatelessRandomGetKeyCounter", "StatelessRandomGetKeyCounterAlg"),
}


def draws(operations: set[str]) -> list[str]:
    """Those of the types of operations that draw random numbers."""
    found = {one for one in operations if any(word in one for word in _DRAWN)}
    return sorted(found - _HARMLESS)


@contextlib.contextmanager
def still_noise() -> Iterator[None]:
    """Patch TensorFlow and Keras in the body. Raises AttributeError if they are too different."""
    from keras.layers import BatchNormalization
    from keras.src.backend.tensorflow import random

    numbers = itertools.count(1)
    patches: list[tuple[Any, str, Callable[..., Any]]] = [
        (importlib.import_module(f"tensorflow.python.ops.{module}"), name, _still(draw, numbers))
        for module, name, draw in (
            ("gen_random_ops", "random_uniform", _uniform),
            ("gen_random_ops", "random_standard_normal", _normal),
            ("gen_random_ops", "truncated_normal", _normal),
            ("gen_random_ops", "random_uniform_int", _integer),
            ("gen_stateless_random_ops_v2", "stateless_random_uniform_v2", _uniform),
            ("gen_stateless_random_ops_v2", "stateless_random_normal_v2", _normal),
            ("gen_stateless_random_ops_v2", "stateless_truncated_normal_v2", _normal),
            ("gen_stateless_random_ops_v2", "stateless_random_uniform_int_v2", _integer),
            ("gen_stateless_random_ops_v2", "stateless_random_uniform_full_int_v2", _bits),
        )
    ]
    for module, name in (
        ("gen_random_ops", "random_shuffle"),
        ("gen_stateless_random_ops_v2", "stateless_shuffle"),
    ):
        place = importlib.import_module(f"tensorflow.python.ops.{module}")
        patches.append((place, name, lambda value, **_: _turned(value)))
    patches += [
        (random, "shuffle", lambda x, axis=0, seed=None: _turned(x, axis)),
        (BatchNormalization, "call", _without_training(BatchNormalization.call)),
    ]
    with contextlib.ExitStack() as stack:
        for place, name, function in patches:
            stack.callback(setattr, place, name, getattr(place, name))
            setattr(place, name, function)
        yield


def _without_training(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        return original(self, inputs, training=False, mask=mask)

    return call


def _still(draw: Callable[..., Any], numbers: Iterator[int]) -> Callable[..., Any]:
    """Draws one row, as the how-manyth draw it is, and repeats it."""

    def drawn(shape: Any, *args: Any, **options: Any) -> Any:
        import tensorflow as tf

        args += tuple(options[name] for name in ("dtype", "minval", "maxval") if name in options)
        shape = tf.cast(tf.convert_to_tensor(shape), tf.int32)
        row = tf.concat([tf.ones_like(shape[:1]), shape[1:]], 0)
        cells = tf.cast(tf.range(tf.reduce_prod(row)), tf.float32)
        # Any fractions will do that look alike nowhere.
        mixed = tf.sin((cells + 1.0) * 12.9898 + next(numbers) * 78.233) * 43758.547
        value = draw(mixed - tf.floor(mixed), *args)
        return tf.broadcast_to(tf.reshape(value, row), shape)

    return drawn


def _uniform(fractions: Any, dtype: Any) -> Any:
    import tensorflow as tf

    return tf.cast(fractions, dtype)


def _normal(fractions: Any, dtype: Any) -> Any:
    import tensorflow as tf

    return tf.cast(tf.math.ndtri(tf.clip_by_value(fractions, 0.03, 0.97)), dtype)


def _integer(fractions: Any, minval: Any, maxval: Any) -> Any:
    import tensorflow as tf

    minval, maxval = tf.convert_to_tensor(minval), tf.convert_to_tensor(maxval)
    room = tf.cast(maxval - minval, tf.float32)
    return minval + tf.cast(tf.minimum(tf.floor(fractions * room), room - 1), minval.dtype)


def _bits(fractions: Any, dtype: Any) -> Any:
    import tensorflow as tf

    return tf.cast(tf.cast(fractions * 2.0**30, tf.int64), dtype)


def _turned(value: Any, axis: int = 0) -> Any:
    import tensorflow as tf

    return tf.reverse(value, [axis])
