"""One call of a layer, in all models of a stack."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from ..numbers import Numbers
from ..trainer import CannotStack
from ..values import Value


@dataclasses.dataclass(frozen=True)
class Lookup:
    """Rows that were taken out of a table."""

    table: Any
    """The first model's variable."""
    rows: Value
    """Their numbers."""
    found: Any
    """The rows of all models."""


@dataclasses.dataclass
class Site:
    """What a form gets beside the arguments of the call, and where it leaves what layers change."""

    layer: Any
    """That of the first model, for all of them: the others differ in numbers alone."""
    models: int
    training: bool
    state: Mapping[int, Any]
    """The variables of all models, with a model axis, by the identity of the first model's."""
    numbers: Numbers
    changed: dict[int, Any]
    """New values of variables that are not trained, by the same."""
    losses: list[Any]
    """What layers add to the loss: one number for each model."""
    lookups: list[Lookup]
    """The rows of tables that were taken."""
    watch: Callable[[Any], None]
    """Have the gradient of a tensor be known."""

    def weight(self, variable: Any, dtype: Any = None) -> Any:
        """The values of a variable in all models, in the type that the layer computes in."""
        value = self.value(variable)
        return tf.cast(value, dtype or self.layer.compute_dtype)

    def value(self, variable: Any) -> Any:
        """The values of a variable in all models now."""
        known = id(variable)
        if known in self.changed:
            return self.changed[known]
        if known not in self.state:
            raise CannotStack(self.name, f"its variable {variable.path!r} is not the model's own")
        return self.state[known]

    def looked_up(self, table: Any, rows: Value, found: Any) -> Any:
        """Note that rows of a table were taken: their gradient is the table's."""
        self.watch(found)
        self.lookups.append(Lookup(table, rows, found))
        return found

    @property
    def name(self) -> str:
        """What the user calls the layer."""
        return str(getattr(self.layer, "name", type(self.layer).__name__))

    @property
    def variables(self) -> list[Any]:
        """All variables of the layer, random seeds too."""
        return list(getattr(self.layer, "variables", ()))

    def own_numbers(self) -> Sequence[int]:
        """The places of the numbers of the layer, and of what is within it."""
        layers = [*getattr(self.layer, "_flatten_layers", lambda: ())()]
        regularizers = [getattr(one, "activity_regularizer", None) for one in layers]
        return self.numbers.of([*layers, *(one for one in regularizers if one is not None)])

    def number(self, layer: Any, attribute: str) -> Any:
        """A number of all models, as a tensor with a model axis."""
        for place in self.numbers.of([layer]):
            if self.numbers.names[place].endswith(f".{attribute}"):
                return tf.convert_to_tensor(self.numbers.variables[place])
        return tf.fill([self.models], tf.constant(getattr(layer, attribute), tf.float64))
