"""One part of a model: the calls of the graph that are computed on one device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .calls import Call, Graph, consumers


@dataclasses.dataclass(frozen=True)
class Part:
    """Some calls, one after the other, and where they are computed."""

    device: str
    calls: tuple[Call, ...]
    inputs: tuple[int, ...]
    """The numbers of the tensors that come from earlier parts, or that the model is given."""
    outputs: tuple[int, ...]
    """Those that later parts take, or that the model puts out."""

    @property
    def layers(self) -> list[Any]:
        """Its layers, in the order of their first calls."""
        found = {id(call.operation): call.operation for call in self.calls}
        return [one for one in found.values() if hasattr(one, "variables")]

    @property
    def variables(self) -> list[Any]:
        return _distinct(one for layer in self.layers for one in layer.variables)

    @property
    def trainable_weights(self) -> list[Any]:
        return _distinct(one for layer in self.layers for one in layer.trainable_variables)

    @property
    def non_trainable_variables(self) -> list[Any]:
        return _distinct(one for layer in self.layers for one in layer.non_trainable_variables)

    def run(self, values: Mapping[int, Any], training: bool) -> tuple[list[Any], list[Any]]:
        """Its outputs for these inputs, and what its layers have added to the loss meanwhile."""
        values, losses = dict(values), []
        for call in self.calls:
            values.update(zip(call.outputs, call.run(values, training), strict=True))
            if hasattr(call.operation, "_flatten_layers"):
                # Each call of a layer begins with none.
                for layer in call.operation._flatten_layers():
                    losses += layer._get_own_losses()
        return [values[number] for number in self.outputs], losses

    def regularisation(self) -> list[Any]:
        """The losses of its weights."""
        return [one for layer in self.layers for one in layer._get_regularization_losses()]


def parts_of(graph: Graph, begins: list[int], devices: list[str]) -> tuple[Part, ...]:
    """The graph in parts, which begin with the first call and with these."""
    ends = [*begins, len(graph.calls)]
    taken = consumers(graph.calls)
    made = []
    for device, begin, end in zip(devices, [0, *begins], ends, strict=True):
        calls = graph.calls[begin:end]
        own = [number for call in calls for number in call.outputs]
        needed = dict.fromkeys(number for call in calls for number in call.inputs.values())
        leaves = [
            number
            for number in own
            if number in graph.outputs or any(place >= end for place in taken.get(number, ()))
        ]
        arrives = tuple(number for number in needed if number not in own)
        made.append(Part(device, calls, arrives, tuple(leaves)))
    return tuple(made)


def _distinct(variables: Any) -> list[Any]:
    return list({id(one): one for one in variables}.values())
