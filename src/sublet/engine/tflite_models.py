"""TensorFlow Lite models, as TensorFlow Serving serves them.

Owns a model's interpreter. It runs one call at a time, in memory of its own: what it takes is not
TensorFlow's pool, so the lease does not bound it.
"""

import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sublet.channel.codes import Code, invalid_argument
from sublet.channel.tensors import Array
from sublet.engine.model_opening import Opened
from sublet.engine.model_sources import LITE
from sublet.engine.savedmodel_proto import Signature, TensorSpec
from sublet.engine.signatures import DEFAULT, Bound, Gate
from sublet.errors import ServingError

_SIGNATURES = b"signature_defs_metadata"
"""What TensorFlow Serving's own signatures are called in the file."""
_PREDICT = "tensorflow/serving/predict"
_MOST_THREADS = 4
_STRING = 7


class TfliteOpening:
    """The opening of the file in a version's directory."""

    def __init__(self, path: str, options: Mapping[str, Any]) -> None:
        self._path = os.path.join(path, LITE)

    def open(self) -> Opened:
        return _TfliteModel(self._path)

    def cancel(self) -> None:
        """It comes to its end: nothing of it takes long."""


class _TfliteModel:
    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            content = file.read()
        try:
            self._interpreter = _interpreter(content)
            self._interpreter.allocate_tensors()
        except (ValueError, RuntimeError) as wrong:
            raise ServingError(
                f"{path} cannot be loaded by TensorFlow Lite: {wrong}", Code.FAILED_PRECONDITION
            ) from None
        self._turn = threading.Lock()
        self._gate = Gate()
        self.signatures = {
            name: self._bind(name, inputs, outputs)
            for name, (inputs, outputs) in _signatures(self._interpreter, content).items()
        }

    def close(self) -> None:
        self._gate.close()
        for bound in self.signatures.values():
            bound.unbind()
        del self._interpreter

    def cancel(self) -> None:
        """A call comes to its end."""

    def _bind(self, name: str, inputs: "_Tensors", outputs: "_Tensors") -> Bound:
        signature = Signature(_PREDICT, _specs(inputs), _specs(outputs))

        def run(arrays: tuple[Array, ...]) -> Sequence[Array]:
            return self._run(list(inputs.values()), list(outputs.values()), arrays)

        # As in TensorFlow Serving, an input has the shape of what comes, whatever the file says. So
        # nobody knows whether it has rows.
        return Bound(name, signature, run, self._gate, stateful=False, batchable=False)

    def _run(
        self, inputs: list[Any], outputs: list[Any], arrays: tuple[Array, ...]
    ) -> Sequence[Array]:
        model = self._interpreter
        with self._turn:
            try:
                for one, array in zip(inputs, arrays, strict=True):
                    model.resize_tensor_input(one["index"], array.shape)
                model.allocate_tensors()
                for one, array in zip(inputs, arrays, strict=True):
                    text = one["dtype"] is np.bytes_
                    model.set_tensor(one["index"], array.astype(np.bytes_) if text else array)
                model.invoke()
            except (ValueError, RuntimeError) as wrong:
                raise invalid_argument(f"TensorFlow Lite: {wrong}") from None
            return [_plain(model.get_tensor(one["index"])) for one in outputs]


_Tensors = dict[str, Any]  # The details of an interpreter's tensors, by their names for clients.


def _interpreter(content: bytes) -> Any:
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:
        from tensorflow.lite.python.interpreter import Interpreter
    with warnings.catch_warnings():
        # Which of the two there is, is for whoever installs them.
        warnings.simplefilter("ignore")
        return Interpreter(model_content=content, num_threads=threads)


def _signatures(model: Any, content: bytes) -> dict[str, tuple[_Tensors, _Tensors]]:
    """The signatures of a model: its own, those that TensorFlow Serving put into the file, or
    one of all its inputs and outputs."""
    found = {}
    for name in model.get_signature_list():
        runner = model.get_signature_runner(name)
        found[name] = (runner.get_input_details(), runner.get_output_details())
    if found:
        return found
    inputs = {one["name"]: one for one in model.get_input_details()}
    outputs = {one["name"]: one for one in model.get_output_details()}
    for name, definition in _stored(content).items():
        found[name] = (
            {alias: inputs[_tensor(info)] for alias, info in definition.inputs.items()},
            {alias: outputs[_tensor(info)] for alias, info in definition.outputs.items()},
        )
    return found or {DEFAULT: (inputs, outputs)}


def _tensor(info: Any) -> str:
    """The name of a tensor of the file; its signatures name it as TensorFlow does."""
    name: str = info.name
    return name.removesuffix(":0")


def _stored(content: bytes) -> dict[str, Any]:
    """The signatures that TensorFlow Serving's tools have put into a file."""
    from flatbuffers import flexbuffers
    from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef
    from tensorflow.lite.python.schema_py_generated import Model

    model = Model.GetRootAs(content, 0)
    for index in range(model.MetadataLength()):
        entry = model.Metadata(index)
        if entry is not None and entry.Name() == _SIGNATURES:
            data = model.Buffers(entry.Buffer()).DataAsNumpy().tobytes()
            stored = flexbuffers.GetRoot(data).AsMap
            names = [key.AsKey for key in stored.Keys]
            return {name: SignatureDef.FromString(stored[name].AsStringBytes) for name in names}
    return {}


def _specs(tensors: _Tensors) -> dict[str, TensorSpec]:
    from tensorflow import as_dtype

    return {
        name: TensorSpec(
            one["name"],
            _STRING if one["dtype"] is np.bytes_ else as_dtype(one["dtype"]).as_datatype_enum,
            None,
        )
        for name, one in tensors.items()
    }


def _plain(array: Any) -> Array:
    """An output as clients get it: strings are objects."""
    return array.astype(object) if array.dtype.kind == "S" else np.asarray(array)
