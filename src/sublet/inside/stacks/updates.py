"""The step of all optimizers: what the first model's does, for each model with its own state."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from keras.src import backend, ops
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.optimizers.base_optimizer import BaseOptimizer

from ..optimizer_variables import inner
from .losses import vectorised
from .numbers import Numbers
from .values import Value

_PLAIN = (
    "_apply_weight_decay",
    "_backend_update_step",
    "_backend_increment_gradient_accumulators",
    "_overwrite_model_variables_with_average_value",
)
"""What TensorFlow's optimizers of Keras do to variables themselves, and not through Keras."""


@dataclasses.dataclass(frozen=True)
class Gradient:
    """The gradient of one weight, in all models: of the whole weight, of some of its rows, both, or
    none."""

    dense: Any = None
    rows: tuple[tuple[Value, Any], ...] = ()
    """Numbers of rows, and their gradients."""

    def __bool__(self) -> bool:
        return self.dense is not None or bool(self.rows)

    def and_rows(self, numbers: Value, gradient: Any) -> Gradient:
        """The same with more rows."""
        return Gradient(self.dense, (*self.rows, (numbers, gradient)))

    def parts(self, models: int) -> Any:
        """What it consists of, as tensors with a model axis."""
        width = [gradient.shape[-1] for _, gradient in self.rows][:1]
        return (
            () if self.dense is None else self.dense,
            [tf.reshape(one.along(models), [models, -1]) for one, _ in self.rows],
            [tf.reshape(one, [models, -1, *width]) for _, one in self.rows],
        )


def of_one_model(parts: Any, shape: Any) -> Any:
    """The gradient of one model, as Keras gets it from TensorFlow."""
    dense, numbers, rows = parts
    if not rows:
        return dense
    sparse = tf.IndexedSlices(tf.concat(rows, 0), tf.concat(numbers, 0), tf.constant(shape))
    if isinstance(dense, tuple):
        return sparse
    return dense + tf.convert_to_tensor(sparse)


def updated(
    model: Any,
    models: Sequence[Any],
    numbers: Numbers,
    gradients: Sequence[Gradient],
    weights: Sequence[Any],
    slots: Sequence[Any],
    state: Mapping[int, Any],
) -> dict[int, Any]:
    """The new values of weights and slots, given the gradients of all models."""
    first = model.optimizer
    chosen = numbers.of([inner(first)])
    present = [place for place, gradient in enumerate(gradients) if gradient]
    keys = [*weights, *slots]
    elems = (
        [gradients[place].parts(len(models)) for place in present],
        [state[id(one)] for one in keys],
        [tf.convert_to_tensor(numbers.variables[place]) for place in chosen],
        _rates(first, models, state),
    )

    def of_one(slices: Any) -> Any:
        found, values, own, rate = slices
        all_gradients: list[Any] = [None] * len(weights)
        for place, gradient in zip(present, found, strict=True):
            all_gradients[place] = of_one_model(gradient, tuple(weights[place].shape))
        mapping = list(zip(keys, values, strict=True))
        with (
            numbers.put(chosen, own),
            _stateless(first, weights, rate),
            backend.StatelessScope(mapping) as scope,
        ):
            first.apply(all_gradients, weights)
            return [scope.get_current_value(one) for one in keys]

    return dict(zip(map(id, keys), vectorised(of_one, elems), strict=True))


def _rates(first: Any, models: Sequence[Any], state: Mapping[int, Any]) -> Any:
    """The learning rates that schedules give; nothing if rates are variables like others."""
    schedules = [inner(model.optimizer)._learning_rate for model in models]
    if isinstance(schedules[0], backend.Variable):
        return ()
    steps = state[id(inner(first)._iterations)]
    rates = [schedule(steps[place]) for place, schedule in enumerate(schedules)]
    return tf.stack([tf.cast(one, backend.floatx()) for one in rates])


_ASSIGN = {
    "assign": lambda variable, value: variable.assign(tf.convert_to_tensor(value)),
    "assign_add": lambda variable, value: variable.assign(variable + tf.convert_to_tensor(value)),
    "assign_sub": lambda variable, value: variable.assign(variable - tf.convert_to_tensor(value)),
}


@contextlib.contextmanager
def _stateless(optimizer: Any, weights: Sequence[Any], rate: Any) -> Iterator[None]:
    """Have the optimizer change variables by Keras' own means, which a StatelessScope catches."""
    real = {optimizer, inner(optimizer)}
    keys = {id(one): optimizer._var_key(one) for one in weights}
    kept, kept_add = ops.cond, backend.numpy.add
    plain = {name: getattr(TFOptimizer, name) for name in _PLAIN}
    try:
        for name in plain:  # Of the class: Nadam has one of its own that calls it.
            setattr(TFOptimizer, name, getattr(BaseOptimizer, name))
        for one in real:
            for name, method in _ASSIGN.items():
                object.__setattr__(one, name, method)
            object.__setattr__(one, "_var_key", lambda variable: keys[id(variable)])
        if not isinstance(rate, tuple):
            object.__setattr__(inner(optimizer), "_get_current_learning_rate", lambda: rate)
        ops.cond, backend.numpy.add = _cond, _add
        yield
    finally:
        ops.cond, backend.numpy.add = kept, kept_add
        for name, method in plain.items():
            setattr(TFOptimizer, name, method)
        for one in real:
            for name in (*_ASSIGN, "_var_key", "_get_current_learning_rate"):
                vars(one).pop(name, None)


def _add(one: Any, other: Any) -> Any:
    """A sum, and nothing else: Keras makes a BiasAdd of one whose second part has a single axis
    longer than 1, which TensorFlow vectorises wrongly for a kernel of shape [1, n, 1]."""
    # A negative number would be a tensor of single precision.
    negative = -other if isinstance(other, (int, float)) else backend.numpy.negative(other)
    return backend.numpy.subtract(one, negative)


def _cond(pred: Any, true_fn: Any, false_fn: Any) -> Any:
    """Both branches, and then a choice for each variable: models may choose differently."""
    outer = backend.get_stateless_scope()
    scopes, results = [], []
    for branch in (true_fn, false_fn):
        scope = backend.StatelessScope()
        scope.state_mapping = dict(outer.state_mapping)
        with scope:
            results.append(branch())
        scopes.append(scope.state_mapping)
    for known, value in outer.state_mapping.items():
        one, other = (scope[known] for scope in scopes)
        if one is not value or other is not value:
            outer.state_mapping[known] = tf.where(pred, one, other)
    if results[0] is None:
        return None
    return tf.nest.map_structure(lambda one, other: tf.where(pred, one, other), *results)
