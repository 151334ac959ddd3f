"""oneDNN's part of a first fit, done before the fork: which operations it has, and matrix products.

Owns two things that TensorFlow does in each process when they are first needed, and keeps for the
process: a table in which its layout pass notes for each operation and type whether oneDNN has it
(each entry is a walk through all kernels), and oneDNN's own kernels of matrix products, compiled as
machine code. Neither needs the runtime, a thread that stays, or a GPU. Never decides anything for a
program: both would be the same there.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Callable, Iterator
from typing import Any

from . import pool

_OPERATIONS = {
    "DT_FLOAT": """
        Abs AddN AddV2 ArgMax BatchMatMulV2 BiasAdd BiasAddGrad BroadcastTo ConcatV2 Conv2D
        Conv2DBackpropFilter Conv2DBackpropInput DivNoNan Einsum Equal Exp ExpandDims Fill Greater
        GreaterEqual Identity Less LessEqual Log Log1p MatMul Max MaxPool MaxPoolGrad Maximum Mean
        Minimum Mul Neg Pack Pow RealDiv Reciprocal Relu ReluGrad Reshape Rsqrt RsqrtGrad Select
        SelectV2 Shape ShapeN Sigmoid SigmoidGrad Softmax SparseSoftmaxCrossEntropyWithLogits Split
        Sqrt Square SquaredDifference Squeeze StopGradient StridedSlice StridedSliceGrad Sub Sum
        Tanh TanhGrad Tile Transpose UnsortedSegmentSum ZerosLike _EagerConst _FusedMatMul
        """,
    "DT_INT32": """
        AddV2 BroadcastGradientArgs ConcatV2 DynamicStitch ExpandDims Fill FloorDiv FloorMod
        Identity InvertPermutation Less Max Maximum Minimum Mul Pack Prod RandomStandardNormal
        RandomUniform Reshape SelectV2 StridedSlice Sub _EagerConst
        """,
    "DT_INT64": """
        AddV2 Equal ExpandDims FloorMod Identity Pack RandomShuffle RandomUniform Reshape Slice
        _EagerConst
        """,
    "DT_BOOL": "Identity _EagerConst",
    "DT_STRING": "Identity _EagerConst",
    "DT_VARIANT": "Identity ZerosLike _EagerConst",
    "DT_RESOURCE": "Identity _EagerConst",
}
"""What Keras models and plain TensorFlow programs are made of, by type. One that is missing costs a
program about a millisecond; one that TensorFlow does not have is left out."""

_LONGEST = 20
"""Seconds for one of these works; they take a tenth of one."""
_SIDE = 40
"""Rows and columns of the products: enough for all kernels that are not made for one shape."""


def prepare() -> list[str]:
    """Do both, as far as this TensorFlow lets us; returns the names of what was done.

    Each work is tried in a forked child first: they reach into TensorFlow's libraries, and one that
    fits a TensorFlow we know may crash another.
    """
    from tensorflow.python.util import _pywrap_util_port

    if not _pywrap_util_port.IsMklEnabled():
        return []
    works: list[Callable[[], None]] = [fill_layout_table, compile_products]
    done = []
    for work in works:
        if survives(work):
            work()
            done.append(work.__name__)
    return done


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
    """Let the layout pass look at a graph that has each operation once in each type.

    The table belongs to the thread that asks, and that is the worker's main thread after the fork.
    A `tf.Graph` would not do: it starts a thread that stays.
    """
    library = _Library()
    # Larger by far than the objects are; kept from the garbage collector until the end.
    graph, message = _room(), _room()
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
    # The pass only visits what can be reached from the graph's source.
    library.tie(graph)
    library.run_pass(ctypes.byref(ctypes.c_void_p(ctypes.addressof(graph))))
    library.destroy_graph(graph)


def compile_products() -> None:
    """Have constant products folded: TensorFlow's graph optimizer computes them where it stands.

    Its threads end with it. Each combination of transposed factors has kernels of its own.
    """
    import numpy as np
    from tensorflow.core.framework import types_pb2
    from tensorflow.core.protobuf import (
        config_pb2,
        device_properties_pb2,
        meta_graph_pb2,
        rewriter_config_pb2,
    )
    from tensorflow.python.framework import tensor_util
    from tensorflow.python.grappler import cluster, tf_optimizer

    graph = meta_graph_pb2.MetaGraphDef()
    wanted = graph.collection_def["train_op"].node_list.value
    ones = tensor_util.make_tensor_proto(np.ones((_SIDE, _SIDE), np.float32))
    factor = graph.graph_def.node.add(name="factor", op="Const")
    factor.attr["dtype"].type = types_pb2.DT_FLOAT
    factor.attr["value"].tensor.CopyFrom(ones)
    for left in (False, True):
        for right in (False, True):
            name = f"product_{left}_{right}"
            node = graph.graph_def.node.add(name=name, op="MatMul", input=["factor", "factor"])
            node.attr["T"].type = types_pb2.DT_FLOAT
            node.attr["transpose_a"].b, node.attr["transpose_b"].b = left, right
            wanted.append(f"{name}:0")
    config = config_pb2.ConfigProto()
    rewrite = config.graph_options.rewrite_options
    rewrite.min_graph_nodes = -1
    rewrite.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.ONE
    rewrite.optimizers.append("constfold")
    # A device that is only described: none is made.
    device = device_properties_pb2.NamedDevice(name="/job:localhost/replica:0/task:0/device:CPU:0")
    device.properties.type, device.properties.num_cores = "CPU", 1
    device.properties.frequency = 1000
    machine = cluster.Cluster(devices=[device])
    folded = tf_optimizer.OptimizeGraph(config, graph, verbose=False, cluster=machine)
    if any(node.op == "MatMul" for node in folded.node):
        raise ValueError("the products were not folded")


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
    """Give a node what its definition asks for: the type, the least of all else, and inputs."""
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


def _room() -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(1 << 16)


class _NodeOrStatus(ctypes.Structure):
    """An `absl::StatusOr<Node*>`, which C++ has the caller make room for."""

    _fields_ = (("status", ctypes.c_uint64), ("node", ctypes.c_void_p))


_OK = 1


class _Library:
    """The few C++ functions of TensorFlow that are needed, by the names that the linker knows.

    A name tells the types of all arguments, so that most functions that were changed are not found.
    """

    def __init__(self) -> None:
        address, number = ctypes.c_void_p, ctypes.c_int
        library = pool.c_library()
        for name, symbol, result, arguments in (
            ("operations", "10OpRegistry6GlobalEv", address, ()),
            ("construct_graph", "5GraphC1EPKNS_19OpRegistryInterfaceE", None, (address, address)),
            ("destroy_graph", "5GraphD1Ev", None, (address,)),
            ("construct_node", "7NodeDefC1EPN6google8protobuf5ArenaE", None, (address, address)),
            ("add_node", "5Graph7AddNodeENS_7NodeDefE", None, (address, address, address)),
            (
                "add_edge",
                "5Graph7AddEdgeEPNS_4NodeEiS2_i",
                address,
                (address, address, number, address, number),
            ),
            ("tie", "23FixupSourceAndSinkEdgesEPNS_5GraphE", ctypes.c_bool, (address,)),
            (
                "run_pass",
                "23RunMklLayoutRewritePassEPSt10unique_ptrINS_5GraphESt14default_deleteIS1_EE",
                ctypes.c_bool,
                (address,),
            ),
        ):
            self._bind(library, name, f"_ZN10tensorflow{symbol}", result, arguments)
        self._bind(
            library,
            "parse",
            "_ZN6google8protobuf11MessageLite14ParseFromArrayEPKvi",
            ctypes.c_bool,
            (address, ctypes.c_char_p, number),
        )

    def _bind(
        self, library: Any, name: str, symbol: str, result: Any, arguments: tuple[Any, ...]
    ) -> None:
        function = getattr(library, symbol)
        function.restype, function.argtypes = result, arguments
        setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)  # So that a type checker knows that there are more.
