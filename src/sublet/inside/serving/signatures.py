"""A loaded model's signatures, bound to what runs them.

Owns the form in which the rest of the engine sees a model: names, types and shapes, and one call
from arrays to arrays. Knows nothing of queues, memory or files.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from sublet.inside.serving.saved import Signature, Tensor

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Run = Callable[[tuple[Array, ...]], Sequence[Array]]

STRING = 7
REFERENCE = 100
"""Added to the type of a variable of TensorFlow 1."""
_BY_EXAMPLE = ("tensorflow/serving/classify", "tensorflow/serving/regress")
"""Methods whose one input is a vector of examples by contract, whatever the signature says."""


class Bound:
    """One signature of a loaded model. Any number of threads may call it.

    An input whose memory is aligned to 64 bytes is used where it is, without a copy; an output may
    be a view of an input. So whoever hands an input over leaves it alone until the outputs have
    been used. Where the model has state nothing is shared: the state outlives the call.
    """

    __slots__ = ("_names", "_run", "batchable", "inputs", "method", "name", "outputs", "stateful")

    def __init__(
        self, name: str, signature: Signature, run: Run, stateful: bool, batchable: bool
    ) -> None:
        self.name = name
        self.method = signature.method
        self.inputs = {key: _settled(one) for key, one in signature.inputs.items()}
        self.outputs = {key: _settled(one) for key, one in signature.outputs.items()}
        self.stateful = stateful
        """Calls change the model, or may see such changes: one at a time, in their order."""
        self.batchable = batchable
        """Rows of several requests may run as one batch, along the first dimension of each."""
        self._names = tuple(signature.inputs)
        self._run = run

    def call(self, inputs: Arrays) -> dict[str, Array]:
        """All outputs, for all inputs. Raises what TensorFlow raises."""
        arrays = tuple([inputs[name] for name in self._names])
        if not self.stateful:
            # A session gives a number where the output has no dimensions.
            return dict(zip(self.outputs, map(np.asarray, self._run(arrays)), strict=True))
        results = self._run(tuple([np.array(array, copy=True) for array in arrays]))
        return {
            name: np.array(result, copy=True)
            for name, result in zip(self.outputs, results, strict=True)
        }

    def __repr__(self) -> str:
        return f"<Bound {self.name}({', '.join(self.inputs)}) -> {', '.join(self.outputs)}>"


def _settled(tensor: Tensor) -> Tensor:
    """The value of a variable is no reference to it."""
    if tensor.dtype > REFERENCE:
        return dataclasses.replace(tensor, dtype=tensor.dtype - REFERENCE)
    return tensor


def batchable(signature: Signature) -> bool:
    """Whether the first dimension of all inputs and outputs is free. A tensor of unknown rank says
    nothing of it, but for examples."""
    if not signature.inputs or not signature.outputs:
        return False
    by_example = signature.method in _BY_EXAMPLE and len(signature.inputs) == 1
    return all(
        by_example if tensor.shape is None else tensor.shape[:1] == (-1,)
        for tensor in (*signature.inputs.values(), *signature.outputs.values())
    )


class Lazily:
    """A run that is prepared when it is first needed; many signatures are never called."""

    def __init__(self, prepare: Callable[[], Run]) -> None:
        self._prepare = prepare
        self._ready: Run | None = None
        self._lock = threading.Lock()

    def __call__(self, inputs: tuple[Array, ...]) -> Sequence[Array]:
        run = self._ready
        if run is None:
            with self._lock:
                run = self._ready
                if run is None:
                    run = self._ready = self._prepare()
        return run(inputs)


class Node(Protocol):
    """What is read of a NodeDef."""

    name: str
    op: str
    input: Sequence[str]
    attr: Mapping[str, Any]


class State:
    """Finds out what a graph can do to its own state.

    An operation counts if TensorFlow calls it stateful and it is not known to leave everything as
    it was: one too many costs batching, one too few would mix up the state.
    """

    def __init__(self, graph: Any, is_stateful: Callable[[str], bool]) -> None:
        self._nodes: dict[str, Node] = {node.name: node for node in graph.node}
        self._functions = {one.signature.name: one for one in graph.library.function}
        self._is_stateful = is_stateful
        self._known: dict[str, bool] = {}

    def changed_by(self, signature: Signature) -> bool:
        """Whether a call of it can change the model."""
        fed = {_node(tensor.name) for tensor in signature.inputs.values()}
        waiting = [_node(tensor.name) for tensor in signature.outputs.values()]
        seen = set(waiting)
        while waiting:
            node = self._nodes.get(waiting.pop())
            if node is None or node.name in fed:
                continue
            if self._changes(node):
                return True
            for name in map(_node, node.input):
                if name not in seen:
                    seen.add(name)
                    waiting.append(name)
        return False

    def _changes(self, node: Node) -> bool:
        called = [name for value in node.attr.values() for name in _called(value)]
        if called:
            return any(self._function_changes(name) for name in called)
        if node.op in self._functions:
            return self._function_changes(node.op)
        return not _HARMLESS.fullmatch(node.op) and self._is_stateful(node.op)

    def _function_changes(self, name: str) -> bool:
        if name not in self._known:
            self._known[name] = False  # For one that calls itself.
            function = self._functions.get(name)
            nodes: Iterable[Node] = () if function is None else function.node_def
            self._known[name] = any(self._changes(node) for node in nodes)
        return self._known[name]


_HARMLESS = re.compile(
    r"Placeholder.*|Var(iable|HandleOp|IsInitializedOp).*|ReadVariable.*|VariableShape|"
    r"ResourceGather.*|IsVariableInitialized|Identity.*|"
    r"(Mutable|Anonymous|MutableDense)*HashTable.*|LookupTable(Find|Size|Export).*|"
    r"Random.*|ParameterizedTruncatedNormal|TruncatedNormal|Multinomial|StatelessRandom.*|"
    r"Stateful(Uniform|StandardNormal|TruncatedNormal|RandomBinomial).*|Assert|Print.*|NoOp"
)
"""Stateful operations that change nothing a later call could see. Random numbers of one call are
not those of another anyway."""


def _node(name: str) -> str:
    """The node of a tensor or of an input, as `x:0` and `^x`."""
    return name.lstrip("^").partition(":")[0]


def _called(value: Any) -> list[str]:
    """The functions that an attribute of a node names."""
    if value.HasField("func"):
        return [value.func.name]
    if value.HasField("list"):
        return [function.name for function in value.list.func]
    return []
