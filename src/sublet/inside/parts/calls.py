"""The graph of a functional or Sequential Keras model, as calls of its layers in order.

Models within the model are taken apart, too, where that computes the same. Tensors between calls
have numbers, so that a model that is called twice within another has two of each.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a layer, or of another operation of Keras."""

    operation: Any
    arguments: Any
    inputs: Mapping[int, int]
    """The numbers of the tensors that it takes, by the identity of Keras' symbol for each."""
    outputs: tuple[int, ...]
    symbols: tuple[Any, ...]
    """Keras' symbols of what it puts out: their shapes and types."""

    def run(self, values: Mapping[int, Any], training: bool) -> list[Any]:
        """What it puts out for these tensors."""
        from keras.src import tree
        from keras.src.models.functional import operation_fn

        given = {symbol: values[number] for symbol, number in self.inputs.items()}
        args, kwargs = self.arguments.fill_in(given)
        found: list[Any] = tree.flatten(
            operation_fn(self.operation, training=training)(*args, **kwargs)
        )
        return found

    @property
    def variables(self) -> list[Any]:
        """Of its layer, those too that are not trained."""
        return list(getattr(self.operation, "variables", ()))


@dataclasses.dataclass(frozen=True)
class Graph:
    """All calls of a model, each after those whose outputs it takes."""

    model: Any
    """The functional model: of a Sequential one, what is within."""
    calls: tuple[Call, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def flat(self, inputs: Any) -> dict[int, Any]:
        """The inputs of a call of the model, by their numbers."""
        return dict(zip(self.inputs, self.model._standardize_inputs(inputs), strict=True))

    def packed(self, values: Mapping[int, Any]) -> Any:
        """The outputs, as the model returns them."""
        from keras.src import tree
        from keras.src.models.functional import unpack_singleton

        found = [values[number] for number in self.outputs]
        return unpack_singleton(tree.pack_sequence_as(self.model._outputs_struct, found))

    @classmethod
    def of(cls, model: Any) -> Graph:
        """The graph of a model that `functional` has found one for."""
        found = functional(model)
        numbers = itertools.count()
        known = {id(symbol): next(numbers) for symbol in found.inputs}
        calls = tuple(_calls(found, known, numbers))
        inputs, outputs = (
            tuple(known[id(symbol)] for symbol in symbols)
            for symbols in (found.inputs, found.outputs)
        )
        return cls(found, calls, inputs, outputs)


def functional(model: Any) -> Any:
    """The functional model that this model is, or that it is made of; None if there is none."""
    from keras.src.models.functional import Functional
    from keras.src.models.sequential import Sequential

    if isinstance(model, Sequential) and type(model).call is Sequential.call:
        return model._functional
    if isinstance(model, Functional) and type(model).call is Functional.call:
        return model
    return None


def _calls(model: Any, known: dict[int, int], numbers: Iterator[int]) -> Iterator[Call]:
    """The calls of a model whose inputs are known by their numbers; what they put out then is."""
    for depth in sorted(model._nodes_by_depth, reverse=True):
        for node in model._nodes_by_depth[depth]:
            if node.is_input or any(id(symbol) not in known for symbol in node.input_tensors):
                continue
            inner = _within(node)
            if inner is not None:
                scope = {
                    id(symbol): known[id(given)]
                    for symbol, given in zip(inner.inputs, node.input_tensors, strict=True)
                }
                yield from _calls(inner, scope, numbers)
                for symbol, outer in zip(inner.outputs, node.outputs, strict=True):
                    known[id(outer)] = scope[id(symbol)]
                continue
            outputs = tuple(next(numbers) for _ in node.outputs)
            inputs = {id(symbol): known[id(symbol)] for symbol in node.input_tensors}
            known.update(zip(map(id, node.outputs), outputs, strict=True))
            yield Call(node.operation, node.arguments, inputs, outputs, tuple(node.outputs))


def _within(node: Any) -> Any:
    """The functional model that this node calls, if it is called with its inputs and nothing else,
    and they are as it expects them."""
    from keras.src import tree

    inner = functional(node.operation)
    args, kwargs = node.arguments.args, node.arguments.kwargs
    if inner is None or len(args) != 1:
        return None
    if any(value is not None for name, value in kwargs.items() if name != "training"):
        return None
    if isinstance(args[0], dict) or isinstance(inner._inputs_struct, dict):
        return None
    given = tree.flatten(args[0])
    as_expected = len(given) == len(inner.inputs) and all(
        getattr(one, "dtype", "") == expected.dtype and len(one.shape) == len(expected.shape)
        for one, expected in zip(given, inner.inputs, strict=True)
    )
    return inner if as_expected else None


def consumers(calls: Iterable[Call]) -> dict[int, list[int]]:
    """Which calls take each tensor, by their places."""
    found: dict[int, list[int]] = {}
    for place, call in enumerate(calls):
        for number in call.inputs.values():
            found.setdefault(number, []).append(place)
    return found
