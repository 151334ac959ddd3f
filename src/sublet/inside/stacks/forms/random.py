"""Random numbers of several models at once, for `tf.vectorized_map`, which knows only a loop."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_DRAWS = (
    "StatelessRandomUniformV2",
    "StatelessRandomNormalV2",
    "StatelessTruncatedNormalV2",
    "StatelessRandomUniformFullIntV2",
)
"""They take a shape, a key, a counter and an algorithm."""


def install() -> None:
    """Tell TensorFlow, once. Without it layers that draw random numbers cannot be vectorised, and
    nothing else is different."""
    try:
        from tensorflow.python.ops.parallel_for import pfor

        known, register, wrap = pfor._pfor_converter_registry, pfor.RegisterPFor, pfor.wrap
    except (ImportError, AttributeError):
        return
    for name in (*_DRAWS, "StatelessRandomGetKeyCounter", "StatelessRandomGetAlg"):
        if name not in known:
            register(name)(_converter(name, wrap))


def _converter(name: str, wrap: Any) -> Any:
    def convert(given: Any) -> Any:
        inputs = [given.input(place) for place in range(given.num_inputs)]
        stacked = [one.t for one in inputs if one.is_stacked]
        attributes = {"dtype": given.get_attr("dtype")} if name in _DRAWS else {}
        if not stacked:
            return wrap(_run(name, [one.t for one in inputs], attributes), False)
        found = []
        for place in range(stacked[0].shape[0]):
            own = [one.t[place] if one.is_stacked else one.t for one in inputs]
            found.append(_run(name, own, attributes))
        if isinstance(found[0], tuple):
            return [wrap(tf.stack(parts), True) for parts in zip(*found, strict=True)]
        return wrap(tf.stack(found), True)

    return convert


def _run(name: str, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    return getattr(tf.raw_ops, name)(**dict(zip(_NAMES[name], inputs, strict=True)), **attributes)


_NAMES = {
    **dict.fromkeys(_DRAWS, ("shape", "key", "counter", "alg")),
    "StatelessRandomGetKeyCounter": ("seed",),
    "StatelessRandomGetAlg": (),
}
