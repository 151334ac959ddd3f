"""Fills oneDNN's layout table before the fork, which saves a first Keras fit 7 % of its time.

TensorFlow's layout pass notes in this table, for each operation and type, whether oneDNN has that
operation; each entry takes a walk through all kernels. A program would get the same answers. This
starts neither the runtime nor a thread, and takes no memory from TensorFlow's allocators. The
figures are in docs/design/0002.

Rejected: folding matrix products as constants, so that oneDNN compiles its kernels (50 ms of a
first fit). The folding allocates memory, and the allocator is chosen at the first allocation of a
process: the lease of the worker would come too late.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Callable, Iterator
from typing import Any

from sublet.inside import allocator

_OPERATIONS = {
    "DT_FLOAT": """
        Abs AddN AddV2 ArgMax BatchMatMulV2 BiasAdd BiasAddGrad BroadcastTo ConcatV2 Conv2D
        Conv2DBackpropFilter Conv2DBackpropInput DivNoNan Einsum Equal Exp ExpandDims Fill Greater
        GreaterEqual Identity Less LessEqual Log Log1p MatMul Max MaxPool MaxPoolGrad Maximum Mean
        Minimum Mul Neg Pack Pow RealDiv Reciprocal Relu ReluGrad Reshape Rsqrt RsqrtGrad Select
        SelectV2 Shape ShapeN Sigmoid SigmoidGrad Softmax SparseSoftmaxCrossEntropyWithLogits Split
        Sqrt Square SquaredDifference Squeeze StopGradient StridedSlice StridedSliceGrad Sub Sum
        Tanh TanhGrad Tile Transpose UnsortedSegmentSum ZerosLike _Arg _EagerConst _FusedMatMul
        _Retval
        """,
    "DT_INT32": """
        AddV2 BitwiseAnd BroadcastGradientArgs ConcatV2 DynamicStitch ExpandDims Fill FloorDiv
        FloorMod Identity InvertPermutation Less Max Maximum Minimum Mul Pack Prod
        RandomStandardNormal RandomUniform Reshape SelectV2 StridedSlice Sub _Arg _DeviceArg
        _DeviceRetval _EagerConst _Retval
        """,
    "DT_INT64": """
        AddV2 Equal ExpandDims FloorMod Identity Pack RandomShuffle RandomUniform Reshape SelectV2
        Slice _Arg _EagerConst _Retval
        """,
    "DT_UINT64": "_Arg _Retval",
    "DT_BOOL": "Identity Pack _Arg _EagerConst _Retval",
    "DT_STRING": "Identity _Arg _EagerConst _Retval",
    "DT_VARIANT": "Identity ZerosLike _Arg _EagerConst _Retval",
    "DT_RESOURCE": "Identity _Arg _EagerConst _Retval",
}
"""The operations of Keras models and plain TensorFlow programs by type, including the ends of every
function (`_Arg`, `_Retval`). A missing one costs a program about two milliseconds; one that this
TensorFlow lacks is left out."""

_LONGEST = 20
"""Seconds after which the trial is ended; it takes a tenth of one."""


def prepare() -> bool:
    """Fill the table if oneDNN is on and this TensorFlow allows it; whether that was done.

    Tried in a forked child first: it calls private functions of TensorFlow's libraries, and what
    works with a known TensorFlow may crash another.
    """
    from tensorflow.python.util import _pywrap_util_port

    if not _pywrap_util_port.IsMklEnabled() or not survives(fill_layout_table):
        return False
    fill_layout_table()
    return True


def survives(work: Callable[[], None]) -> bool:
    """Whether a forked child comes through `work` unharmed, and without a thread more."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(_LONGEST)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            before = _threads()
            work()
            code = 0 if _threads() <= before else 2
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def fill_layout_table() -> None:
    """Run the layout pass on a graph that has each operation once in each type.

    The table belongs to the calling thread, which is the worker's main thread after the fork. A
    `tf.Graph` cannot be used, as it starts a thread that stays.
    """
    library = _Library()
    # Far larger than the objects; both names must live until the end.
    graph, message = _buffer(), _buffer()
    library.construct_graph(graph, library.operations())
    library.construct_node(message, None)
    nodes: dict[str, int] = {}
    for node in _every_operation():
        written = node.SerializeToString()
        if not library.parse(message, written, len(written)):
            raise ValueError("this TensorFlow reads nodes differently")
        added = _NodeOrStatus()
        library.add_node(ctypes.byref(added), graph, message)
        if added.status != _OK:
            raise ValueError(f"this TensorFlow refuses {node.op}")
        nodes[node.name] = added.node
        for index, source in enumerate(node.input):
            library.add_edge(graph, nodes[source], 0, nodes[node.name], index)
    # The pass only visits nodes that the graph's source reaches.
    library.tie(graph)
    library.run_pass(ctypes.byref(ctypes.c_void_p(ctypes.addressof(graph))))
    library.destroy_graph(graph)


def _every_operation() -> Iterator[Any]:
    """NodeDefs of the operations of the list, each after the placeholders that feed it."""
    from tensorflow.core.framework import node_def_pb2, types_pb2
    from tensorflow.python.framework import op_def_registry

    for number in types_pb2.DataType.values():
        if 0 < number < types_pb2.DT_FLOAT_REF:
            source = node_def_pb2.NodeDef(name=_source(number), op="Placeholder")
            source.attr["dtype"].type = number
            source.attr["shape"].shape.unknown_rank = True
            yield source
    for name, operations in _OPERATIONS.items():
        for operation in operations.split():
            definition = op_def_registry.get(operation)
            if definition is not None:
                node = node_def_pb2.NodeDef(name=f"{operation}/{name}", op=operation)
                _fill(node, definition, types_pb2.DataType.Value(name))
                yield node


def _fill(node: Any, definition: Any, number: int) -> None:
    """Give a node what its definition requires: the type, minimal attributes, and inputs."""
    for attribute in definition.attr:
        value = node.attr[attribute.name]
        allowed = attribute.allowed_values.list
        if attribute.name == "T":
            value.type = number
        elif attribute.HasField("default_value"):
            value.CopyFrom(attribute.default_value)
        elif attribute.type == "type":
            value.type = allowed.type[-1]
        elif attribute.type == "int":
            value.i = max(1, attribute.minimum)
        elif attribute.type == "list(int)":
            value.list.i.extend([1] * 4)
        elif attribute.type == "string":
            value.s = allowed.s[0] if allowed.s else b"a->a"
    for argument in definition.input_arg:
        kind = node.attr[argument.type_attr].type if argument.type_attr else argument.type
        count = node.attr[argument.number_attr].i if argument.number_attr else 1
        node.input.extend([_source(kind)] * count)


def _source(number: int) -> str:
    return f"in_{number}"


def _buffer() -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(1 << 16)


class _NodeOrStatus(ctypes.Structure):
    """An `absl::StatusOr<Node*>`, for which the caller provides the memory."""

    _fields_ = (("status", ctypes.c_uint64), ("node", ctypes.c_void_p))


_OK = 1


_ADDRESS, _NUMBER = ctypes.c_void_p, ctypes.c_int
_FUNCTIONS: tuple[tuple[str, str, Any, tuple[Any, ...]], ...] = (
    ("operations", "10OpRegistry6GlobalEv", _ADDRESS, ()),
    ("construct_graph", "5GraphC1EPKNS_19OpRegistryInterfaceE", None, (_ADDRESS,) * 2),
    ("destroy_graph", "5GraphD1Ev", None, (_ADDRESS,)),
    ("construct_node", "7NodeDefC1EPN6google8protobuf5ArenaE", None, (_ADDRESS,) * 2),
    ("add_node", "5Graph7AddNodeENS_7NodeDefE", None, (_ADDRESS,) * 3),
    (
        "add_edge",
        "5Graph7AddEdgeEPNS_4NodeEiS2_i",
        _ADDRESS,
        (_ADDRESS, _ADDRESS, _NUMBER, _ADDRESS, _NUMBER),
    ),
    ("tie", "23FixupSourceAndSinkEdgesEPNS_5GraphE", ctypes.c_bool, (_ADDRESS,)),
    (
        "run_pass",
        "23RunMklLayoutRewritePassEPSt10unique_ptrINS_5GraphESt14default_deleteIS1_EE",
        ctypes.c_bool,
        (_ADDRESS,),
    ),
)
_PARSE = "_ZN6google8protobuf11MessageLite14ParseFromArrayEPKvi"


class _Library:
    """The C++ functions of TensorFlow that are needed, by their mangled names.

    A mangled name contains the argument types, so a function with others is not found.
    """

    def __init__(self) -> None:
        library = allocator.c_library()
        for name, symbol, result, arguments in _FUNCTIONS:
            self._bind(name, getattr(library, f"_ZN10tensorflow{symbol}"), result, arguments)
        parse = getattr(library, _PARSE)
        self._bind("parse", parse, ctypes.c_bool, (_ADDRESS, ctypes.c_char_p, _NUMBER))

    def _bind(self, name: str, function: Any, result: Any, arguments: tuple[Any, ...]) -> None:
        function.restype, function.argtypes = result, arguments
        setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)  # Tells type checkers that there are more attributes.
