"""Mixed precision for a model that was built without it.

Weights stay in float32. Layers compute in float16 or bfloat16, but for those whose outputs are the
model's: losses are small differences. Gradients in float16 are scaled, and a batch with one that is
infinite is left out as a whole, however it was split.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from . import install
from .refused import Refused

PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")


@contextlib.contextmanager
def precision(model: Any, name: str) -> Iterator[None]:
    """Have the model compute so in the body, and as before after it. Raises Refused."""
    layers = _layers(model, name)
    before = [(layer, layer.dtype_policy) for layer in layers]
    optimizer = model.optimizer
    scale = getattr(optimizer, "loss_scale_factor", None)
    for layer in layers:
        layer.dtype_policy = name
    if name == "mixed_float16":
        model.optimizer = _scaling(optimizer)
    install.forget_functions(model)
    try:
        yield
    finally:
        for layer, policy in before:
            layer.dtype_policy = policy
        if model.optimizer is not optimizer:
            model.optimizer = optimizer
            optimizer.loss_scale_factor = scale
        install.forget_functions(model)


def _layers(model: Any, name: str) -> list[Any]:
    """The layers that are to compute in another type than they do."""
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    if name not in PRECISIONS:
        raise Refused(
            f"There is no precision {name!r}.", f"Write {' or '.join(map(repr, PRECISIONS))}."
        )
    outputs = {id(layer) for layer in _output_layers(model)}
    found = []
    for layer in model._flatten_layers():
        if layer.dtype_policy.name == name or id(layer) in outputs:
            continue
        if layer.variable_dtype != "float32":
            raise Refused(
                f"Layer {layer.name!r} keeps its weights in {layer.variable_dtype}, and mixed "
                "precision in float32.",
                "Build the model with float32.",
            )
        found.append(layer)
    if name == "mixed_float16" and type(model).train_step is not TensorFlowTrainer.train_step:
        raise Refused(
            f"{type(model).__name__}.train_step is the program's own: it has to scale its loss "
            "itself.",
            "Take mixed_bfloat16, which needs no scale.",
        )
    return found


def _output_layers(model: Any) -> list[Any]:
    """The layers that compute what the model puts out, as far as it shows them."""
    import keras

    outputs = getattr(model, "outputs", None) if getattr(model, "built", False) else None
    found = [one._keras_history.operation for one in keras.tree.flatten(outputs or [])]
    if not found and isinstance(model, keras.Sequential) and model.layers:
        found = model.layers[-1:]
    return [inner for one in found for inner in one._flatten_layers()]


def _scaling(optimizer: Any) -> Any:
    import keras

    scales = keras.mixed_precision.LossScaleOptimizer
    return optimizer if isinstance(optimizer, scales) else scales(optimizer)
