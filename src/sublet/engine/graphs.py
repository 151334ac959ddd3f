"""What the nodes of a model's graph lead to.

Owns two questions about a GraphDef: which part of it is needed, and whether a call can change the
model. Reads the message only; needs no TensorFlow.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol


class Node(Protocol):
    """What is read of a NodeDef."""

    name: str
    op: str
    input: Sequence[str]
    attr: Mapping[str, Any]


class Graph:
    def __init__(self, definition: Any) -> None:
        self._definition = definition
        self._nodes: dict[str, Node] = {node.name: node for node in definition.node}
        self._functions = {one.signature.name: one for one in definition.library.function}
        self._known: dict[str, bool] = {}

    def operations(self) -> Iterator[str]:
        """The kinds of all nodes, those of functions too."""
        for nodes in (self._nodes.values(), *(one.node_def for one in self._functions.values())):
            yield from (node.op for node in nodes)

    def part(self, roots: Iterable[str]) -> Any:
        """A GraphDef with what the `roots` (nodes or tensors) need and nothing else: an exported
        model has three times as many nodes, for saving and for calls that nobody can make."""
        nodes = {node.name for node in self._behind(roots)}
        functions: set[str] = set()
        waiting = [name for node in nodes for name in self._called(self._nodes[node])]
        while waiting:
            name = waiting.pop()
            if name not in functions and name in self._functions:
                functions.add(name)
                for node in self._functions[name].node_def:
                    waiting += self._called(node)
        part = type(self._definition)()
        part.versions.CopyFrom(self._definition.versions)
        part.node.extend(node for node in self._definition.node if node.name in nodes)
        library = self._definition.library
        part.library.function.extend(f for f in library.function if f.signature.name in functions)
        part.library.gradient.extend(g for g in library.gradient if g.function_name in functions)
        return part

    def changed_by(
        self, outputs: Iterable[str], inputs: Iterable[str], stateful: Callable[[str], bool]
    ) -> bool:
        """Whether computing the `outputs` from the `inputs` can change the model. An operation
        counts if it is `stateful` and not known to change nothing: one too many costs batching,
        one too few would mix up the state."""
        fed = {_node(name) for name in inputs}
        return any(self._changes(node, stateful) for node in self._behind(outputs, fed))

    def _behind(self, roots: Iterable[str], fed: Collection[str] = ()) -> Iterator[Node]:
        waiting = [_node(root) for root in roots]
        seen = set(waiting)
        while waiting:
            node = self._nodes.get(waiting.pop())
            if node is None or node.name in fed:
                continue
            yield node
            for name in map(_node, node.input):
                if name not in seen:
                    seen.add(name)
                    waiting.append(name)

    def _changes(self, node: Node, stateful: Callable[[str], bool]) -> bool:
        called = self._called(node)
        if called:
            return any(self._function_changes(name, stateful) for name in called)
        return not _HARMLESS.fullmatch(node.op) and stateful(node.op)

    def _function_changes(self, name: str, stateful: Callable[[str], bool]) -> bool:
        if name not in self._known:
            self._known[name] = False  # For one that calls itself.
            function = self._functions.get(name)
            nodes: Iterable[Node] = () if function is None else function.node_def
            self._known[name] = any(self._changes(node, stateful) for node in nodes)
        return self._known[name]

    def _called(self, node: Node) -> list[str]:
        called = [node.op] if node.op in self._functions else []
        for value in node.attr.values():
            if value.HasField("func"):
                called.append(value.func.name)
            elif value.HasField("list"):
                called += [function.name for function in value.list.func]
        return called


_HARMLESS = re.compile(
    r"Placeholder.*|Var(iable|HandleOp|IsInitializedOp).*|ReadVariable.*|VariableShape|"
    r"ResourceGather.*|IsVariableInitialized|Identity.*|"
    r"(Mutable|Anonymous|MutableDense)*HashTable.*|LookupTable(Find|Size|Export).*|"
    r"Random.*|ParameterizedTruncatedNormal|TruncatedNormal|Multinomial|"
    r"Stateful(Uniform|StandardNormal|TruncatedNormal|RandomBinomial).*|Assert|Print.*|NoOp"
)
"""Stateful operations that change nothing a later call could see. Random numbers differ from
call to call anyway."""


def _node(name: str) -> str:
    """The node of a tensor or of an input, as `x:0` and `^x`."""
    return name.lstrip("^").partition(":")[0]
