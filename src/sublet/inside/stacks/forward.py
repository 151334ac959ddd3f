"""The outputs of all models for one batch: each call of the first model's graph, for all models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from ..parts.calls import Call, Graph
from .forms import generic
from .forms.registry import form
from .forms.site import Lookup, Site
from .numbers import Numbers
from .values import Value


@dataclasses.dataclass(frozen=True)
class Outputs:
    """What came of a batch."""

    values: list[Value]
    """The outputs of the models, in the order of their graph."""
    changed: dict[int, Any]
    """New values of variables that layers change by themselves (statistics, seeds)."""
    losses: list[Any]
    """What layers have added to the loss."""
    lookups: list[Lookup]
    """The rows of embeddings that were taken."""


def forward(
    graph: Graph,
    models: int,
    inputs: Mapping[int, Value],
    state: Mapping[int, Any],
    numbers: Numbers,
    training: bool,
    watch: Callable[[Any], None],
) -> Outputs:
    """Compute all models. Raises CannotStack if a layer cannot be computed for several at once."""
    known: dict[int, Value] = dict(inputs)
    changed: dict[int, Any] = {}
    losses: list[Any] = []
    lookups: list[Lookup] = []
    for call in graph.calls:
        site = Site(
            call.operation,
            models,
            training,
            state,
            numbers,
            changed,
            losses,
            lookups,
            watch,
        )
        known.update(zip(call.outputs, _outputs(call, site, known), strict=True))
    return Outputs([known[number] for number in graph.outputs], changed, losses, lookups)


def _outputs(call: Call, site: Site, known: Mapping[int, Value]) -> list[Value]:
    given = {symbol: known[number] for symbol, number in call.inputs.items()}
    args, kwargs = call.arguments.fill_in(given)
    with tf.name_scope(_scope(site.name)):
        return generic.values(form(call.operation)(site, args, kwargs))


def _scope(name: str) -> str:
    return "".join(one if one.isalnum() else "_" for one in name).strip("_") or "call"
