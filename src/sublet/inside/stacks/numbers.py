"""Hyper-parameters that are only numbers: each gets a model axis, and may differ between models.

While something is computed for one model, an object of the first model (its optimizer, a layer, a
regulariser) has that model's number in place of its own. One that is the same in all models stays
what it is until it is set: Keras then leaves out what a zero leaves out.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from keras.src import backend
from keras.src.backend.tensorflow import random

from ..optimizer_variables import inner
from ..training.refused import Refused

LAYERS: Mapping[str, tuple[str, ...]] = {
    "BatchNormalization": ("momentum", "epsilon"),
    "LayerNormalization": ("epsilon",),
    "GroupNormalization": ("epsilon",),
    "RMSNormalization": ("epsilon",),
    "Dropout": ("rate",),
    "SpatialDropout1D": ("rate",),
    "SpatialDropout2D": ("rate",),
    "SpatialDropout3D": ("rate",),
    "GaussianNoise": ("stddev",),
    "LeakyReLU": ("negative_slope",),
    "ELU": ("alpha",),
    "Rescaling": ("scale", "offset"),
}
"""By the class of a layer, its attributes that are numbers: they change no shape."""
OBJECTS: Mapping[str, tuple[str, ...]] = {
    "L1": ("l1",),
    "L2": ("l2",),
    "L1L2": ("l1", "l2"),
}
"""The same, of regularisers."""
OPTIMIZERS = (
    "momentum",
    "rho",
    "epsilon",
    "beta",
    "beta_1",
    "beta_2",
    "beta_2_decay",
    "weight_decay",
    "clipnorm",
    "global_clipnorm",
    "clipvalue",
    "ema_momentum",
    "learning_rate_power",
    "l1_regularization_strength",
    "clip_threshold",
    "l2_regularization_strength",
    "l2_shrinkage_regularization_strength",
    "loss_scale_factor",
    "adam_beta_1",
    "adam_beta_2",
    "adam_weight_decay",
    "adam_lr_ratio",
    "rms_rate",
)
"""The same, of optimizers."""


class Number:
    """A number of one model within a graph. It is never zero for those who ask.

    It is as exact as Python's own, also after arithmetic with such: `1 - 0.999` in single precision
    would be wrong by 5e-5 of itself, and with it each step of Adam. Beside a tensor it has the
    tensor's type.
    """

    __hash__ = None  # type: ignore[assignment]
    shape = tf.TensorShape([])

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.dtype = backend.floatx()

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return self is other

    def __gt__(self, other: Any) -> bool:
        return True

    __ge__ = __gt__

    def __lt__(self, other: Any) -> bool:
        return False

    __le__ = __lt__

    def __neg__(self) -> Number:
        return Number(-self.tensor)

    def __add__(self, other: Any) -> Any:
        return self._with(other, operator.add)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._with(other, operator.sub)

    def __rsub__(self, other: Any) -> Any:
        return self._with(other, lambda one, two: two - one)

    def __mul__(self, other: Any) -> Any:
        return self._with(other, operator.mul)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self._with(other, operator.truediv)

    def __rtruediv__(self, other: Any) -> Any:
        return self._with(other, lambda one, two: two / one)

    def __pow__(self, other: Any) -> Any:
        return self._with(other, operator.pow)

    def __rpow__(self, other: Any) -> Any:
        return self._with(other, lambda one, two: two**one)

    def _with(self, other: Any, operation: Callable[[Any, Any], Any]) -> Any:
        if isinstance(other, Number):
            return Number(operation(self.tensor, other.tensor))
        if isinstance(other, (int, float)):
            return Number(operation(self.tensor, tf.constant(other, self.tensor.dtype)))
        tensor = tf.convert_to_tensor(other)
        dtype = tensor.dtype if tensor.dtype.is_floating else tf.as_dtype(self.dtype)
        return operation(tf.cast(self.tensor, dtype), tf.cast(tensor, dtype))


tf.register_tensor_conversion_function(
    Number,
    lambda value, dtype=None, name=None, as_ref=False: tf.cast(value.tensor, dtype or value.dtype),
)


Place = tuple[str, Any, str]
"""The name of a number for the user, the object that has it, and its attribute there."""


def places(model: Any) -> Iterator[Place]:
    """All numbers of a model, in the same order for models of the same architecture."""
    optimizer = inner(model.optimizer)
    for attribute in OPTIMIZERS:
        if is_number(getattr(optimizer, attribute, None)):
            yield attribute, optimizer, attribute
    for name, layer in named_layers(model):
        yield from layer_places(name, layer)


def layer_places(name: str, layer: Any) -> Iterator[Place]:
    """The numbers of one layer and its regularisers."""
    for attribute in LAYERS.get(type(layer).__name__, ()):
        if is_number(getattr(layer, attribute, None)):
            yield f"{name}.{attribute}", layer, attribute
    for part in sorted(vars(layer)):
        if part.endswith("_regularizer"):
            owner = getattr(layer, part)
            for attribute in OBJECTS.get(type(owner).__name__, ()):
                if is_number(getattr(owner, attribute)):
                    yield f"{name}.{part}.{attribute}", owner, attribute


def named_layers(model: Any) -> Iterator[tuple[str, Any]]:
    """All layers, by the names that their builder gave them, or else by class and order: names
    that Keras makes count on from model to model."""
    from keras.src.utils.naming import to_snake_case

    counts: dict[str, int] = {}
    for layer in model._flatten_layers(include_self=False):
        kind = to_snake_case(type(layer).__name__)
        number = counts.get(kind, 0)
        counts[kind] = number + 1
        made = layer.name.rstrip("0123456789").rstrip("_") == kind
        yield (f"{kind}_{number}" if number else kind) if made else layer.name, layer


def numbers_of(model: Any) -> dict[str, float]:
    """The numbers of a compiled model, by the names that `Trainer.set` takes."""
    found = {name: float(getattr(owner, attribute)) for name, owner, attribute in places(model)}
    rate = inner(model.optimizer)._learning_rate
    if hasattr(rate, "assign"):
        found["learning_rate"] = float(rate)
    return found


class Numbers:
    """The numbers of all models that a graph reads, each as a variable with a model axis."""

    def __init__(self, models: Sequence[Any]) -> None:
        aligned = zip(*(tuple(places(model)) for model in models), strict=True)
        self.names: list[str] = []
        self._owners: list[tuple[Any, str]] = []
        self._all: list[list[tuple[Any, str]]] = []
        self.variables: list[Any] = []
        self._differ: set[int] = set()
        """Those that are not the same in all models."""
        for same in aligned:
            name, owner, attribute = same[0]
            values = [float(getattr(one, attribute)) for _, one, _ in same]
            if any(values):
                if len(set(values)) > 1:
                    self._differ.add(len(self.names))
                self.names.append(name)
                self._owners.append((owner, attribute))
                self._all.append([(one, attribute) for _, one, _ in same])
                self.variables.append(tf.Variable(values, dtype=tf.float64, trainable=False))

    def of(self, owners: Sequence[Any]) -> list[int]:
        """Which numbers that differ belong to one of these objects of the first model."""
        known = {id(one) for one in owners}
        return [place for place in sorted(self._differ) if id(self._owners[place][0]) in known]

    @contextlib.contextmanager
    def put(self, chosen: Sequence[int], values: Sequence[Any]) -> Iterator[None]:
        """Have the objects of the first model have these numbers meanwhile."""
        kept = [getattr(*self._owners[place]) for place in chosen]
        try:
            for place, value in zip(chosen, values, strict=True):
                put(*self._owners[place], Number(value))
            random.dropout = _dropout
            yield
        finally:
            random.dropout = _keras_dropout
            for place, value in zip(chosen, kept, strict=True):
                put(*self._owners[place], value)

    def write_back(self, place: int) -> None:
        """Put the numbers of one model into its own objects."""
        for owners, variable in zip(self._all, self.variables, strict=True):
            value = float(variable[place])
            owner, attribute = owners[place]
            if abs(getattr(owner, attribute) - value) > 1e-6 * abs(value):
                put(owner, attribute, value)

    def tensor(self, name: str) -> Any:
        """A number of all models."""
        return tf.cast(self.variables[self.names.index(name)], backend.floatx())

    def of_model(self, place: int) -> dict[str, float]:
        """The numbers of one model by their names."""
        return {
            name: float(variable[place])
            for name, variable in zip(self.names, self.variables, strict=True)
        }

    def set(self, place: int, name: str, value: float) -> bool:
        """Change a number of one model; whether the graph, which had it as a constant, has to be
        made anew."""
        if name not in self.names:
            known = ", ".join(["learning_rate", *self.names])
            raise Refused(f"No number {name!r} can be set.", f"There are: {known}.")
        number = self.names.index(name)
        self.variables[number][place].assign(value)
        constant = number not in self._differ
        self._differ.add(number)
        return constant

    def keep(self, chosen: Sequence[int]) -> None:
        """Go on with the numbers of these models. The graph is made anew after that."""
        self._all = [[owners[place] for place in chosen] for owners in self._all]
        self._differ = set(self._differ)
        self.variables = [
            tf.Variable(tf.gather(one, list(chosen)), trainable=False) for one in self.variables
        ]


_keras_dropout = random.dropout


def _dropout(inputs: Any, rate: Any, noise_shape: Any = None, seed: Any = None) -> Any:
    """Keras' own, which takes tensors but no Number."""
    if not isinstance(rate, Number):
        return _keras_dropout(inputs, rate, noise_shape, seed)
    return tf.nn.experimental.stateless_dropout(
        inputs,
        tf.cast(rate.tensor, inputs.dtype),
        seed=random._cast_seed(random.draw_seed(seed)),
        noise_shape=random._get_concrete_noise_shape(inputs, noise_shape),
    )


def put(owner: Any, attribute: str, value: Any) -> None:
    """Set an attribute, past what Keras does when one is set."""
    object.__setattr__(owner, attribute, value)


def is_number(value: Any) -> bool:
    """Whether a setting is a number, and not a switch."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
