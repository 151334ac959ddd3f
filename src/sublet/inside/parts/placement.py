"""The variables of a part go to its device. Keras' variables stay the same objects, so the model
that was split has what is trained."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from .part import Part


def place(model: Any, parts: Iterable[Part]) -> None:
    """Bring the variables of all parts to their devices. If one does not fit, all are brought back,
    and the error is raised."""
    moved: list[tuple[Any, str]] = []
    try:
        for part in parts:
            for variable in part.variables:
                before = variable._value.device
                _move(variable, part.device)
                moved.append((variable, before))
    except Exception:
        for variable, before in moved:
            _move(variable, before)
        raise
    # They have the old variables.
    model.train_function = model.test_function = model.predict_function = None


def place_optimizer(optimizer: Any, weights: list[Any]) -> None:
    """Bring what an optimizer keeps for each weight to where the weight is. If there is nothing
    yet, it is made in the memory of the host first: there may be no room elsewhere."""
    import tensorflow as tf

    if not optimizer.built:
        with tf.device("CPU:0"):
            optimizer.build(weights)
    for one in (optimizer, getattr(optimizer, "inner_optimizer", None)):
        if one is not None and one.built:
            for weight, kept in _kept_by(one):
                _move(kept, weight.value.device)
            _rename(one)


def _move(variable: Any, device: str) -> None:
    import tensorflow as tf

    old = variable._value
    if old.device.endswith(device):
        return
    with tf.device(device):
        variable._value = tf.Variable(
            tf.identity(old),
            trainable=old.trainable,
            name=variable.name,
            dtype=old.dtype,
            synchronization=old.synchronization,
            aggregation=old.aggregation,
        )


def _kept_by(optimizer: Any) -> Iterator[tuple[Any, Any]]:
    """Pairs of a weight and a variable that the optimizer keeps for it."""
    weights = list(optimizer._trainable_variables)
    for values in list(vars(optimizer).values()):
        if isinstance(values, list) and len(values) == len(weights):
            for weight, kept in zip(weights, values, strict=True):
                if kept is not weight and getattr(kept, "shape", None) == weight.shape:
                    yield weight, kept


def _rename(optimizer: Any) -> None:
    """Keras' optimizers know weights by a name that TensorFlow gives to each of its variables."""
    if hasattr(optimizer, "_trainable_variables_indices"):
        optimizer._trainable_variables_indices = {
            optimizer._var_key(weight): place
            for place, weight in enumerate(optimizer._trainable_variables)
        }


@contextlib.contextmanager
def updates_in_place() -> Iterator[None]:
    """In the body an optimizer computes the update of a weight where the weight is. Keras leaves
    that open, and TensorFlow would take the first GPU."""
    import tensorflow as tf

    extended = tf.distribute.get_strategy().extended
    original = extended.update

    def update(var: Any, *args: Any, **options: Any) -> Any:
        with tf.device(var.device):
            return original(var, *args, **options)

    extended.update = update
    try:
        yield
    finally:
        del extended.update
