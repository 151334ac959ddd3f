"""Which form a layer is computed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import convolution, dense, dropout, embedding, folded, generic, random, recurrent
from .site import Site

Form = Callable[[Site, Any, Any], Any]
"""From a call of a layer and its arguments, with Values for tensors, to the Values it puts out."""

_FORMS: dict[str, Form] = {
    **dict.fromkeys(folded.LAYERS, folded.call),
    **dict.fromkeys(convolution.LAYERS, convolution.call),
    **dict.fromkeys(recurrent.LAYERS, recurrent.call),
    "Dense": dense.call,
    "Embedding": embedding.call,
    **dict.fromkeys(dropout.LAYERS, dropout.call),
}

random.install()


def form(layer: Any) -> Form:
    """The form of this layer. A class that a program has derived from Keras' own may compute
    something else: it is treated like any other."""
    kind = type(layer)
    if kind.__module__.startswith("keras.src.layers."):
        return _FORMS.get(kind.__name__, generic.call)
    return generic.call
