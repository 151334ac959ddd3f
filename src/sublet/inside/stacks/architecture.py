"""What models must have in common to be in one stack."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any

from ..optimizer_variables import inner
from ..parts.calls import Graph, functional
from . import numbers

_UNTOLD = re.compile(r"^(name|seed|build_config|registered_name|.*initializer)$")
"""Settings that say how a model begins, or what it is called."""
_ZERO = ("momentum", "clipnorm", "global_clipnorm", "clipvalue")
"""Numbers of optimizers that switch something off if they are 0."""


def architecture(model: Any) -> Hashable:
    """Equal for models that can be in one stack. It tells kinds of layers, shapes, activations,
    loss, metrics and optimizer apart, and never hyper-parameters that are only numbers."""
    if functional(model) is None:
        return (type(model).__qualname__,)  # None of them can be in one: all are told of together.
    graph = Graph.of(model)
    calls = tuple(
        (
            type(call.operation).__qualname__,
            _plain(_settings(call.operation)),
            _plain(_arguments(call)),
            tuple((tuple(one.shape), str(one.dtype)) for one in call.symbols),
        )
        for call in graph.calls
    )
    variables = tuple(
        (tuple(one.shape), str(one.dtype), one.trainable)
        for one in model.variables
        if not _seed(one)
    )
    inputs = tuple((tuple(one.shape), str(one.dtype)) for one in graph.model.inputs)
    parts: dict[str, Hashable] = {
        "inputs": inputs,
        "layers": calls,
        "variables": variables,
        "outputs": graph.outputs,
    }
    if getattr(model, "compiled", False):
        parts["optimizer"] = _optimizer(model.optimizer)
        parts["losses"] = _objects(model._compile_loss and model._compile_loss._user_loss)
        metrics = model._compile_metrics
        parts["metrics"] = settings(
            metrics and [metrics._user_metrics, metrics._user_weighted_metrics]
        )
        parts["jit_compile"] = bool(model.jit_compile)
    return tuple(parts.items())


def differing(one: Any, other: Any) -> str:
    """Which part of two architectures differs, in words."""
    if not isinstance(one, tuple) or len(one) != len(other):
        return "kind"
    for (name, mine), (_, its) in zip(one, other, strict=True):
        if mine != its:
            if name == "layers" and len(mine) == len(its):
                kinds = [a[0] for a, b in zip(mine, its, strict=True) if a != b]
                return f"its layer {kinds[0]}"
            return str(name)
    return "nothing"


def _settings(operation: Any) -> Any:
    """What an operation was made with, without its numbers."""
    try:
        config = dict(operation.get_config())
    except (NotImplementedError, ValueError, TypeError):
        config = {
            name: value
            for name, value in vars(operation).items()
            if isinstance(value, (bool, int, float, str)) and not name.startswith("_")
        }
    for name in numbers.LAYERS.get(type(operation).__name__, ()):
        if isinstance(config.get(name), (int, float)):
            config[name] = "#"
    return config


def _plain(value: Any) -> Hashable:
    """Settings as something that can be compared: names and beginnings left out."""
    if isinstance(value, Mapping):
        if value.get("class_name") in numbers.OBJECTS:
            return (value["class_name"],)
        return tuple(
            sorted(
                (str(name), _plain(one))
                for name, one in value.items()
                if not _UNTOLD.match(str(name))
            )
        )
    if isinstance(value, (list, tuple)):
        return tuple(_plain(one) for one in value)
    if callable(value):
        return _object(value, True)
    return repr(value)


def _arguments(call: Any) -> Any:
    from keras.src.backend import KerasTensor

    args, kwargs = call.arguments.args, call.arguments.kwargs
    known = dict(call.inputs)

    def told(one: Any) -> Any:
        if isinstance(one, KerasTensor):
            return f"tensor {known.get(id(one))}"
        if isinstance(one, (list, tuple)):
            return [told(part) for part in one]
        if isinstance(one, dict):
            return {name: told(part) for name, part in one.items()}
        return one

    return [told(list(args)), told(dict(kwargs))]


def _optimizer(optimizer: Any) -> Hashable:
    real = inner(optimizer)
    config = {
        name: value
        for name, value in real.get_config().items()
        if name not in ("learning_rate", "name")
    }
    for name in numbers.OPTIMIZERS:
        if numbers.is_number(config.get(name)):
            config[name] = "0" if name in _ZERO and not config[name] else "#"
    scheduled = not hasattr(real._learning_rate, "assign")
    kinds = (type(optimizer).__qualname__, type(real).__qualname__)
    return (*kinds, scheduled, _plain(config))


def _objects(structure: Any) -> Hashable:
    return tuple(_object(one, False) for one in _all(structure))


def settings(structure: Any) -> Hashable:
    """Losses or metrics with all that they were made with."""
    return _plain([_object(one, True) for one in _all(structure)])


def _all(structure: Any) -> list[Any]:
    """The leaves of a structure of losses or metrics."""
    if structure is None:
        return [None]
    if isinstance(structure, Mapping):
        return [leaf for name in sorted(structure) for leaf in (name, *_all(structure[name]))]
    if isinstance(structure, (list, tuple)):
        return [leaf for one in structure for leaf in _all(one)]
    return [structure]


def _object(one: Any, whole: bool) -> Hashable:
    """A loss, a metric or a function: by its kind, and with its settings if they all count."""
    if one is None or isinstance(one, str):
        return one
    if hasattr(one, "get_config") and not isinstance(one, type):
        kind = type(one).__qualname__
        return (kind, _plain(one.get_config())) if whole else (kind,)
    code = getattr(one, "__code__", None)
    if code is None:
        return repr(one)
    told = (one.__module__, one.__qualname__, code.co_code)
    if not whole:
        return told
    cells = [cell.cell_contents for cell in one.__closure__ or ()]
    return (*told, repr(cells), repr(one.__defaults__))


def _seed(variable: Any) -> bool:
    return bool(variable.path.endswith("seed_generator_state"))
