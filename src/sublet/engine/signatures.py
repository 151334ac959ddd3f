"""A loaded model's signatures, bound to what runs them.

Owns the form in which the rest of the engine sees a model: names, types and shapes, and one call
from arrays to arrays. Knows nothing of queues, memory or files.
"""

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sublet.channel import tensors
from sublet.channel.codes import Code
from sublet.channel.tensors import Array
from sublet.engine.savedmodel_proto import Signature, TensorSpec
from sublet.errors import ServingError

Run = Callable[[tuple[Array, ...]], Sequence[Array]]

REFERENCE = 100
"""Added to the type of a variable of TensorFlow 1."""
DEFAULT = "serving_default"
"""The signature that is meant where none is named."""
BY_EXAMPLE = ("tensorflow/serving/classify", "tensorflow/serving/regress")
"""Methods whose one input is a vector of examples by contract, whatever the signature says."""


class Unloaded(ServingError):
    """The model left memory before the call began: load it again, nothing has happened."""

    def __init__(self, message: str = "The model was unloaded.", code: int = Code.UNAVAILABLE):
        super().__init__(message, code)


class Gate:
    """Lets calls in until it is closed, and closes when the last one is out."""

    def __init__(self) -> None:
        self._change = threading.Condition(threading.Lock())
        self._inside = 0
        self.closed = False  # Whether nobody comes in any more; some may still be inside.

    def __enter__(self) -> None:
        with self._change:
            if self.closed:
                raise Unloaded
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._change:
            self._inside -= 1
            if self.closed:
                self._change.notify_all()

    def close(self) -> None:
        """Let nobody in any more, and wait until all have left."""
        with self._change:
            self.closed = True
            self._change.wait_for(lambda: self._inside == 0)


class Bound:
    """One signature of a loaded model. Any number of threads may call it.

    An input whose memory is aligned to 64 bytes is used where it is, without a copy; an output may
    be a view of an input. So whoever hands an input over leaves it alone until the outputs have
    been used. Where the model has state nothing is shared: the state outlives the call. Any other
    input is copied here: TensorFlow would copy it into its pool, and ends the process by a
    segmentation fault where that is full.
    """

    def __init__(
        self,
        name: str,
        signature: Signature,
        run: Run,
        gate: Gate,
        stateful: bool,
        batchable: bool,
    ) -> None:
        self.name = name
        self.method = signature.method
        self.inputs = {key: _settled(one) for key, one in signature.inputs.items()}
        self.outputs = {key: _settled(one) for key, one in signature.outputs.items()}
        self.stateful = stateful
        """Calls change the model, or may see such changes: one at a time, in their order."""
        self.batchable = batchable
        """Rows of several requests may run as one batch, along the first dimension of each."""
        self.quick = False
        """Whether a call was seen to take hardly any time, and has no way to take long."""
        self._names = tuple(signature.inputs)
        self._run = run
        self._gate = gate

    def call(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs, for all inputs. Raises what TensorFlow raises, or Unloaded."""
        copy = self.stateful
        arrays = tuple([aligned(inputs[name], copy) for name in self._names])
        with self._gate:
            results = self._run(arrays)
            if self.stateful:
                results = [np.array(result, copy=True) for result in results]
        # A session gives a number where the output has no dimensions.
        return dict(zip(self.outputs, map(np.asarray, results), strict=True))

    def unbind(self) -> None:
        """The gate is closed: let go of the model, however long this signature is kept."""
        self._run = _unbound

    def __repr__(self) -> str:
        return f"<Bound {self.name}({', '.join(self.inputs)}) -> {', '.join(self.outputs)}>"


def _unbound(inputs: tuple[Array, ...]) -> Sequence[Array]:
    raise Unloaded


def aligned(array: Array, copy: bool = False) -> Array:
    """The array as TensorFlow can use it without a copy; itself, where it is so already."""
    array = np.asarray(array)
    if array.dtype.hasobject or not array.nbytes:
        return array  # Strings are copied in any case.
    at: int = array.__array_interface__["data"][0]
    if not copy and at % tensors.ALIGNED == 0 and array.flags.c_contiguous:
        return array
    fresh = tensors.empty(array.shape, array.dtype)
    fresh[...] = array
    return fresh


def _settled(tensor: TensorSpec) -> TensorSpec:
    """The value of a variable is no reference to it."""
    if tensor.dtype > REFERENCE:
        return dataclasses.replace(tensor, dtype=tensor.dtype - REFERENCE)
    return tensor


def batchable(signature: Signature) -> bool:
    """Whether the first dimension of all inputs and outputs is free. Of a tensor of unknown rank
    that is only known for examples."""
    if not signature.inputs or not signature.outputs:
        return False
    by_example = signature.method in BY_EXAMPLE and len(signature.inputs) == 1
    return all(
        by_example if tensor.shape is None else tensor.shape[:1] == (-1,)
        for tensor in (*signature.inputs.values(), *signature.outputs.values())
    )
