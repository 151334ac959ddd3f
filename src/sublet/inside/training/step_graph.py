"""What the graph of a step shows: what it writes to, what depends on what, which operations run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_PYTHON = {"PyFunc", "EagerPyFunc"}


def operations(graph: Any) -> set[str]:
    """The types of all operations of a graph, and of the functions that it calls."""
    definition = graph.as_graph_def()
    bodies = [definition.node, *(one.node_def for one in definition.library.function)]
    return {node.op for nodes in bodies for node in nodes}


def calls_python(types: set[str]) -> bool:
    """Whether one of these operations calls a function in Python, of which nobody knows what it
    does."""
    return bool(types & _PYTHON)


def written(graph: Any) -> list[Any]:
    """The handles of the resources outside that the graph of a function may change. Raises
    ImportError or AttributeError if TensorFlow does not tell."""
    import tensorflow as tf
    from tensorflow.python.framework import auto_control_deps_utils

    read = set(auto_control_deps_utils.get_read_only_resource_input_indices_graph(graph))
    outside = {inner.name: outer for outer, inner in graph.captures}
    return [
        outside[one.name]
        for at, one in enumerate(graph.inputs)
        if one.dtype == tf.resource and at not in read and one.name in outside
    ]


def inside(graph: Any, variables: Iterable[Any]) -> set[str]:
    """The names that the handles of variables have in the graph, as far as it uses them."""
    wanted = {id(one.handle) for one in variables}
    return {inner.name for outer, inner in graph.captures if id(outer) in wanted}


def ancestors(tensors: Iterable[Any]) -> set[str]:
    """The names of these tensors and of all from which they are computed, in one graph."""
    seen: set[str] = set()
    waiting = list(tensors)
    while waiting:
        tensor = waiting.pop()
        if hasattr(tensor, "op") and tensor.name not in seen:
            seen.add(tensor.name)
            waiting += tensor.op.inputs
    return seen
