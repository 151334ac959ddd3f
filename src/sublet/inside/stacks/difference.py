"""How far two trainings of the same model have come apart."""

from __future__ import annotations

from typing import Any

import numpy as np


def difference(one: Any, other: Any) -> float:
    """The largest difference of any weight of two models; infinite if only one is finite."""
    return max(
        (_largest(a, b) for a, b in zip(_weights(one), _weights(other), strict=True)), default=0.0
    )


def output_difference(one: Any, other: Any, x: Any, training: bool = False) -> float:
    """The largest difference of what two models put out for these rows. Weights whose true gradient
    is zero (a bias before BatchNormalization, the key bias of attention) differ by rounding alone,
    which Adam makes as large as any step; outputs do not see them. Without `training` they see a
    little of the former: moving statistics follow such a bias late."""
    import keras

    outputs = (keras.tree.flatten(model(x, training=training)) for model in (one, other))
    return max(_largest(np.asarray(a), np.asarray(b)) for a, b in zip(*outputs, strict=True))


def _weights(model: Any) -> list[Any]:
    return [np.asarray(value) for value in model.get_weights()]


def _largest(one: Any, other: Any) -> float:
    if not one.size:
        return 0.0
    one, other = one.astype("float64"), other.astype("float64")
    if (np.isnan(one) != np.isnan(other)).any():
        return float("inf")
    return float(np.nanmax(np.abs(one - other), initial=0.0))
