"""Requests as messages: read in part by hand, which must mean the same as reading them whole."""

from typing import Any

import numpy as np

from fuzz.driver import Random, Target
from sublet.errors import ServingError
from sublet.serving.frontend.grpc import oip_tensors
from sublet.serving.frontend.grpc.requests import parse
from sublet.serving.frontend.proto import inference, serving, tensors, wire
from sublet.serving.frontend.shared_memory import ClientMemory, Regions

_PREDICT, _INFER = serving("PredictRequest"), inference("ModelInferRequest")
_LARGE = 16
"""Bytes from which on contents are lifted here; it is a matter of speed only."""


def target() -> Target:
    before, wire.LARGE = wire.LARGE, _LARGE

    def close() -> None:
        wire.LARGE = before

    return Target(feed, _seeds(), make, close)


def feed(data: bytes) -> None:
    whole, lifted = _try(_whole, data), _try(_lifted, data)
    if isinstance(whole, dict) and isinstance(lifted, dict):
        assert whole.keys() == lifted.keys()
        for name, array in whole.items():
            assert np.array_equal(array, lifted[name], equal_nan=array.dtype.kind in "fc")
    else:
        assert whole is lifted is None
    _try(_inferred, data)
    for way in (wire.PREDICT, wire.INFER):
        assert 0 <= wire.content_at(data[:1024], way) <= len(data[:1024])


def make(chance: Random) -> bytes:
    """A message of fields that may be given twice, in any order and of any type."""
    request = _PREDICT()
    request.model_spec.name = chance.choice(("half", "", "x" * 200))
    for name in chance.sample(("x", "y", "", "z" * 40), chance.randrange(4)):
        tensor = request.inputs[name]
        tensor.dtype = chance.choice((0, 1, 3, 7, 9, 10, 14, 19, 23, 99))
        for _ in range(chance.randrange(4)):
            tensor.tensor_shape.dim.add(size=chance.choice((0, 1, 2, 3, -1, 2**40)))
        tensor.tensor_content = chance.randbytes(chance.choice((0, 1, 8, 24, 60)))
        tensor.float_val.extend([bytes(4)] * chance.randrange(4))
        tensor.string_val.extend([b"ab"] * chance.randrange(3))
    parts = [request.SerializeToString(), _infer()]
    return b"".join(chance.choice(parts) for _ in range(chance.randrange(1, 3)))


def _whole(data: bytes) -> dict[str, Any]:
    request = parse(_PREDICT, data)
    return {name: tensors.read(name, one) for name, one in request.inputs.items()}


def _lifted(data: bytes) -> dict[str, Any]:
    found = wire.lift(memoryview(data))
    request = parse(_PREDICT, found.request)
    if found.contents and len(request.inputs) != found.inputs:
        return _whole(data)
    return {
        name: tensors.read(name, one, found.contents.get(name))
        for name, one in request.inputs.items()
    }


def _inferred(data: bytes) -> object:
    rest, raw = wire.lift_raw(memoryview(data))
    request = parse(_INFER, rest)
    shared = ClientMemory(Regions(), 0)
    oip_tensors.wanted(request, shared)
    return oip_tensors.inputs(request, raw or request.raw_input_contents, shared, _room)


def _room(size: int) -> memoryview:
    return memoryview(bytearray(size))


def _try(read: Any, data: bytes) -> Any:
    """None if it is refused."""
    try:
        return read(data)
    except ServingError:
        return None


def _infer() -> bytes:
    request = _INFER(model_name="half", model_version="1")
    request.inputs.add(name="x", datatype="FP32", shape=[2, 1])
    request.inputs.add(name="s", datatype="BYTES", shape=[2])
    request.raw_input_contents.append(bytes(8))
    request.raw_input_contents.append(b"\1\0\0\0a\0\0\0\0")
    data: bytes = request.SerializeToString()
    return data


def _seeds() -> tuple[bytes, ...]:
    request = _PREDICT()
    request.model_spec.name = "half"
    request.inputs["x"].ParseFromString(tensors.write(np.ones((4, 5), np.float32)))
    strings = np.array([b"abc", b""], object)
    request.inputs["s"].ParseFromString(tensors.write(strings))
    raw = _PREDICT()
    raw.inputs["x"].dtype = 1
    raw.inputs["x"].tensor_shape.dim.add(size=20)
    raw.inputs["x"].tensor_content = bytes(80)
    return request.SerializeToString(), raw.SerializeToString(), _infer()
