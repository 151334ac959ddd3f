"""Layers without weights that compute each row by itself: the rows of all models are one batch."""

from __future__ import annotations

from typing import Any

from keras.src import tree

from ...tensor_notes import logits_of, mask_of
from ..values import Value, unfold
from . import generic
from .site import Site

LAYERS = frozenset(
    {
        "Activation",
        "ReLU",
        "LeakyReLU",
        "ELU",
        "Softmax",
        "Flatten",
        "Reshape",
        "Permute",
        "RepeatVector",
        "Masking",
        "Identity",
        "Add",
        "Subtract",
        "Multiply",
        "Average",
        "Maximum",
        "Minimum",
        "Concatenate",
        "Dot",
        "MaxPooling1D",
        "MaxPooling2D",
        "MaxPooling3D",
        "AveragePooling1D",
        "AveragePooling2D",
        "AveragePooling3D",
        "GlobalMaxPooling1D",
        "GlobalMaxPooling2D",
        "GlobalMaxPooling3D",
        "GlobalAveragePooling1D",
        "GlobalAveragePooling2D",
        "GlobalAveragePooling3D",
        "ZeroPadding1D",
        "ZeroPadding2D",
        "ZeroPadding3D",
        "Cropping1D",
        "Cropping2D",
        "Cropping3D",
        "UpSampling1D",
        "UpSampling2D",
        "UpSampling3D",
        "Resizing",
        "CenterCrop",
        "UnitNormalization",
        "AdaptiveAveragePooling1D",
        "AdaptiveAveragePooling2D",
        "AdaptiveAveragePooling3D",
        "AdaptiveMaxPooling1D",
        "AdaptiveMaxPooling2D",
        "AdaptiveMaxPooling3D",
    }
)
"""Of Keras."""


def call(site: Site, args: Any, kwargs: Any) -> Any:
    """What the layer puts out."""
    given = generic.values(args, kwargs)
    mixes_rows = 0 in tree.flatten([getattr(site.layer, name, None) for name in ("axis", "axes")])
    if mixes_rows or site.own_numbers() or site.layer.activity_regularizer is not None:
        return generic.call(site, args, kwargs)
    if not any(value.stacked for value in given):
        return generic.shared(site, args, kwargs)
    args, kwargs = generic.replaced((args, kwargs), lambda value: value.folded(site.models))
    return tree.map_structure(
        lambda tensor: _unfolded(tensor, site.models), generic.invoke(site, args, kwargs)
    )


def _unfolded(tensor: Any, models: int) -> Value:
    mask = mask_of(tensor)
    kept = None if mask is None else Value(unfold(mask, models), True)
    logits = {kind: unfold(one, models) for kind, one in logits_of(tensor).items()}
    return Value(unfold(tensor, models), True, kept, logits)
