"""The bytes of requests, written by hand: every server gets them from the same client.

Owns the three protocols as far as the benchmarks speak them: HTTP/1.1 with JSON, TensorFlow
Serving's messages and those of the Open Inference Protocol. Never opens a socket.
"""

import json
import struct
from collections.abc import Sequence

_FLOAT = 1
_VARINT, _BYTES = 0, 2
PREDICT = "/tensorflow.serving.PredictionService/Predict"
RELOAD = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
INFER = "/inference.GRPCInferenceService/ModelInfer"


# HTTP/1.1


def post(path: str, body: bytes, headers: Sequence[str] = ()) -> bytes:
    """A whole request on a connection that stays open."""
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def get(path: str) -> bytes:
    """A whole request without a body."""
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


def predict(model: str, row: Sequence[float]) -> bytes:
    """TensorFlow Serving's REST: one row."""
    body = json.dumps({"instances": [list(row)]}, separators=(",", ":"))
    return post(f"/v1/models/{model}:predict", body.encode())


def infer(model: str, name: str, row: Sequence[float]) -> bytes:
    """The Open Inference Protocol with JSON: one row."""
    tensor = {"name": name, "shape": [1, len(row)], "datatype": "FP32", "data": list(row)}
    body = json.dumps({"inputs": [tensor]}, separators=(",", ":"))
    return post(f"/v2/models/{model}/infer", body.encode())


# Protocol buffers


def predict_message(model: str, name: str, shape: Sequence[int], content: bytes) -> bytes:
    """A PredictRequest with one float tensor, whose values are the last bytes of the message."""
    sizes = b"".join(_field(2, _number(1, size)) for size in shape)
    tensor = _number(1, _FLOAT) + _field(2, sizes) + _field(4, content)
    entry = _field(1, name.encode()) + _field(2, tensor)
    return _field(1, _field(1, model.encode())) + _field(2, entry)


def infer_message(model: str, name: str, shape: Sequence[int], content: bytes) -> bytes:
    """A ModelInferRequest with one float tensor."""
    sizes = b"".join(map(_varint, shape))
    tensor = _field(1, name.encode()) + _field(2, b"FP32") + _field(3, sizes)
    return _field(1, model.encode()) + _field(5, tensor) + _field(7, content)


def reload_message(model: str, path: str, version: int) -> bytes:
    """A ReloadConfigRequest: serve this version of this model and nothing else."""
    policy = _field(102, _number(1, version))
    config = (
        _field(1, model.encode())
        + _field(2, path.encode())
        + _field(4, b"tensorflow")
        + _field(7, policy)
    )
    return _field(1, _field(1, _field(1, config)))


def framed(message: bytes) -> bytes:
    """A message as gRPC sends it: not compressed, its length, itself."""
    return struct.pack(">BI", 0, len(message)) + message


def floats(values: Sequence[float]) -> bytes:
    """Float32, as this machine and the messages write them."""
    return struct.pack(f"<{len(values)}f", *values)


def holds(data: bytes, expected: Sequence[float], tolerance: float = 1e-4) -> bool:
    """Whether these float32 values stand somewhere in the bytes, one after the other.

    Both protocols write the values of an answer so; batches of other sizes round differently.
    """
    form = struct.Struct(f"<{len(expected)}f")
    return any(
        all(
            abs(a - b) <= tolerance
            for a, b in zip(form.unpack_from(data, at), expected, strict=True)
        )
        for at in range(len(data) - form.size + 1)
    )


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(content)) + content
