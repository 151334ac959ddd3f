"""The Open Inference Protocol (KServe V2) over HTTP, with raw tensors behind the JSON.

The signature is `serving_default`, or the one that the request's parameter `signature_name` names.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any
from urllib.parse import unquote_to_bytes

import numpy as np

import sublet
from sublet.channel.answer import Answer
from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.serving import checks
from sublet.serving.catalogue import Signature, State, Version
from sublet.serving.desk import Desk
from sublet.serving.dtypes import ARRAYS, BFLOAT16, KINDS, STRING, TRITON
from sublet.serving.rest import documents, reading, writing
from sublet.serving.rest.calls import Calls
from sublet.serving.rest.documents import wrong
from sublet.serving.rest.messages import Pending, Reply, Request

Array = np.ndarray[Any, Any]
Answerer = Callable[[Request], Reply | Pending]

_MODEL = re.compile(r"/v2/models/([^/]+)(?:/versions/(\d+))?(?:/(ready|infer|config|stats))?", re.A)
_PLATFORM = "tensorflow_savedmodel"
_RAW = b"application/octet-stream"
_EXTENSIONS = ["binary_tensor_data", "model_repository"]


class Inference:
    """The API."""

    def __init__(self, desk: Desk, calls: Calls) -> None:
        self._desk = desk
        self._calls = calls

    def find(self, method: str, path: str) -> Answerer:
        """What answers requests of this method and path. Raises ServingError."""
        reads = method in ("GET", "HEAD")
        path = path.rstrip("/")
        if match := _MODEL.fullmatch(path):
            name = unquote_to_bytes(match[1]).decode("utf-8", "replace")
            number = None if match[2] is None else int(match[2][:20])
            target = name, number, None
            if match[3] == "infer" and method == "POST":
                return partial(self._infer, target)
            if match[3] == "ready" and reads:
                return partial(self._model_ready, target)
            if match[3] is None and reads:
                return partial(self._model, target)
            if match[3] == "config" and reads:
                return partial(self._config, target)
        elif reads and path == "/v2/health/ready":
            return self._ready
        elif reads and path in _PLAIN:
            return _PLAIN[path]
        elif path == "/v2/repository/index" and method == "POST":
            return self._index
        raise ServingError(f"Nothing is served at {method} {path[:200]}.", Code.NOT_FOUND)

    def _ready(self, request: Request) -> Reply:
        """Ready when no model is on its way that can be called in no version yet."""
        for model in self._desk.catalogue.models.values():
            states = {version.state for version in model.versions.values()}
            if State.AVAILABLE not in states and states & {State.START, State.LOADING}:
                raise ServingError(f"{model.name} is not loaded yet.", Code.UNAVAILABLE)
        return Reply(200, b"")

    def _model_ready(self, target: tuple[str, int | None, None], request: Request) -> Reply:
        self._calls.find(target)
        return Reply(200, b"")

    def _model(self, target: tuple[str, int | None, None], request: Request) -> Reply | Pending:
        version = self._calls.find(target)
        return self._calls.described(version, partial(self._described, version))

    def _described(self, version: Version, signatures: Mapping[str, Signature]) -> Reply:
        model = self._desk.catalogue.models[version.model]
        _, signature = checks.check_signature(signatures, "", rest=True)
        told = {
            "name": version.model,
            "versions": [
                str(each.number)
                for each in sorted(model.versions.values(), key=lambda each: each.number)
                if each.state is State.AVAILABLE
            ],
            "platform": _PLATFORM,
            "inputs": _specs(signature.inputs),
            "outputs": _specs(signature.outputs),
        }
        return Reply(200, writing.encode(told))

    def _config(self, target: tuple[str, int | None, None], request: Request) -> Reply | Pending:
        version = self._calls.find(target)
        return self._calls.described(version, partial(_configured, version))

    def _index(self, request: Request) -> Reply:
        asked = documents.parse(request.body) if request.body.strip() else {}
        told = [
            {
                "name": version.model,
                "version": str(version.number),
                "state": "READY" if version.state is State.AVAILABLE else "UNAVAILABLE",
                "reason": version.error,
            }
            for model in self._desk.catalogue.models.values()
            for version in model.versions.values()
            if not asked.get("ready") or version.state is State.AVAILABLE
        ]
        return Reply(200, writing.encode(told))

    def _infer(self, target: tuple[str, int | None, None], request: Request) -> Reply | Pending:
        split = request.head.split
        body = request.body
        if split is not None and split > len(body):
            raise wrong("Inference-Header-Content-Length is larger than the body.")
        document = documents.parse(body if split is None else body[:split])
        raw = memoryview(body)[len(body) if split is None else split :]
        version = self._calls.find(target)
        return self._calls.described(version, partial(self._run, version, document, raw, request))

    def _run(
        self,
        version: Version,
        document: dict[str, Any],
        raw: memoryview,
        request: Request,
        signatures: Mapping[str, Signature],
    ) -> Pending:
        parameters = _object(document, "parameters")
        chosen = parameters.get("signature_name", "")
        if type(chosen) is not str:
            raise wrong("The parameter signature_name is a string.")
        name, signature = checks.check_signature(signatures, chosen, rest=True)
        inputs = _inputs(document, raw)
        checks.check_inputs(signature, inputs)
        wanted = {
            _text(each, "name", "an output"): _object(each, "parameters")
            for each in _list(document, "outputs")
        }
        checks.check_outputs(signature, tuple(wanted))
        priority = parameters.get("priority", 0)
        identity = document.get("id")
        write = partial(
            _outcome,
            version,
            identity if type(identity) is str else None,
            wanted,
            parameters.get("binary_data_output") is True,
        )
        return self._calls.run(
            version,
            name,
            inputs,
            request,
            write,
            outputs=tuple(wanted),
            priority=priority if type(priority) is int and 0 <= priority < 2**31 else 0,
        )


# What is asked


def _inputs(document: dict[str, Any], raw: memoryview) -> dict[str, Array]:
    found: dict[str, Array] = {}
    at = 0
    for given in _list(document, "inputs"):
        name = _text(given, "name", "an input")
        kind = TRITON.get(_text(given, "datatype", f'input "{name}"'))
        if kind is None or kind.array is None:
            raise wrong(f'Input "{name}" has a datatype that is not known: {given["datatype"]}')
        shape = given.get("shape")
        if type(shape) is not list or not all(
            type(size) is int and 0 <= size < 2**40 for size in shape
        ):
            raise wrong(f'Input "{name}" has no shape: a list of sizes.')
        if len(shape) > 32:
            raise wrong(f'Input "{name}" has more than 32 dimensions.')
        size = _object(given, "parameters").get("binary_data_size")
        if name in found:
            raise wrong(f'Input "{name}" is given twice.')
        if size is None:
            found[name] = _shaped(name, given.get("data"), kind.number, shape)
            continue
        if type(size) is not int or not 0 <= size <= len(raw) - at:
            raise wrong(f'Input "{name}" has fewer bytes in the request than it says.')
        found[name] = _binary(name, raw[at : at + size], kind.number, shape)
        at += size
    if at != len(raw):
        raise wrong(f"{len(raw) - at} bytes of the request belong to no input.")
    return found


def _shaped(name: str, data: Any, dtype: int, shape: list[int]) -> Array:
    """Data of JSON, flat or nested: the protocol allows both."""
    if type(data) is not list:
        raise wrong(f'Input "{name}" has no data: a list of values.')
    if dtype in (19, BFLOAT16):
        raise wrong(f'Input "{name}": {KINDS[dtype].triton} can only be sent as raw bytes.')
    array = reading.tensor(data, dtype)
    if array.size != prod(shape):
        raise wrong(
            f'Input "{name}" has {array.size} values, but its shape {shape} has {prod(shape)}.'
        )
    return array.reshape(shape)


def _binary(name: str, raw: memoryview, dtype: int, shape: list[int]) -> Array:
    if dtype == STRING:
        return _strings(name, raw, shape)
    array = KINDS[dtype].array
    assert array is not None
    if prod(shape) * array.itemsize != len(raw):
        raise wrong(
            f'Input "{name}" has {len(raw)} bytes, but its shape {shape} and datatype '
            f"need {prod(shape) * array.itemsize}."
        )
    # From the middle of a body it may lie crooked in memory; a copy does not.
    return np.frombuffer(bytes(raw), array).reshape(shape)


def _strings(name: str, raw: memoryview, shape: list[int]) -> Array:
    """Each string is its length in four bytes, then itself."""
    found: list[bytes] = []
    at = 0
    while at < len(raw):
        end = at + 4 + int.from_bytes(raw[at : at + 4], "little")
        if at + 4 > len(raw) or end > len(raw):
            raise wrong(f'Input "{name}" has a string that is longer than its bytes.')
        found.append(bytes(raw[at + 4 : end]))
        at = end
    if len(found) != prod(shape):
        raise wrong(
            f'Input "{name}" has {len(found)} strings, but its shape {shape} has {prod(shape)}.'
        )
    array = np.empty(len(found), object)
    array[:] = found
    return array.reshape(shape)


def _list(document: Mapping[str, Any], name: str) -> Sequence[dict[str, Any]]:
    value = document.get(name, [])
    if type(value) is not list or not all(type(each) is dict for each in value):
        raise wrong(f"'{name}' is a list of objects.")
    return value


def _object(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name, {})
    if type(value) is not dict:
        raise wrong(f"'{name}' is an object.")
    return value


def _text(document: Mapping[str, Any], key: str, what: str) -> str:
    value = document.get(key)
    if type(value) is not str:
        raise wrong(f"'{key}' of {what} is a string.")
    return value


# What is told


def _outcome(
    version: Version,
    identity: str | None,
    wanted: Mapping[str, Mapping[str, Any]],
    all_raw: bool,
    answer: Answer,
) -> Reply:
    outputs: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for name, array in answer.outputs.items():
        kind = ARRAYS.get(array.dtype)
        if kind is None or not kind.triton:
            raise wrong(f'Output "{name}" is of type {array.dtype}, which the protocol cannot say.')
        asked = wanted.get(name, {})
        classes = asked.get("classification", 0)
        if type(classes) is int and classes > 0 and array.dtype.kind != "O":
            array, kind = _best(array, classes), KINDS[STRING]
        told: dict[str, Any] = {
            "name": name,
            "datatype": kind.triton,
            "shape": list(array.shape),
        }
        if asked.get("binary_data", all_raw) is True:
            parts.append(_raw(array))
            told["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            told["data"] = writing.flat(array)
        outputs.append(told)
    document: dict[str, Any] = {
        "model_name": version.model,
        "model_version": str(version.number),
        "outputs": outputs,
    }
    if identity is not None:
        document["id"] = identity
    body = writing.encode(document)
    if not parts:
        return Reply(200, body)
    split = b"Inference-Header-Content-Length: %d\r\n" % len(body)
    return Reply(200, b"".join((body, *parts)), _RAW, split)


def _raw(array: Array) -> bytes:
    if array.dtype.kind != "O":
        return array.tobytes()
    items = array.reshape(-1).tolist()
    return b"".join(part for item in items for part in (len(item).to_bytes(4, "little"), item))


def _best(array: Array, classes: int) -> Array:
    """The highest scores of each row as `score:index`, best first."""
    rows = array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)
    best = np.argsort(-rows, axis=1, kind="stable")[:, :classes]
    found = np.empty(best.shape, object)
    for row, order in enumerate(best.tolist()):
        for place, index in enumerate(order):
            found[row, place] = f"{rows[row, index]:f}:{index}".encode()
    return found.reshape((*array.shape[:-1], best.shape[1]))


def _specs(specs: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "datatype": KINDS[spec.dtype].triton if spec.dtype in KINDS else "",
            "shape": [-1] if spec.shape is None else list(spec.shape),
        }
        for name, spec in specs.items()
    ]


def _configured(version: Version, signatures: Mapping[str, Signature]) -> Reply:
    """As much of Triton's model configuration as clients look at."""
    _, signature = checks.check_signature(signatures, "", rest=True)
    sides = {
        side: [
            {
                "name": told["name"],
                "data_type": f"TYPE_{told['datatype'].replace('BYTES', 'STRING')}",
                "dims": told["shape"],
            }
            for told in _specs(specs)
        ]
        for side, specs in (("input", signature.inputs), ("output", signature.outputs))
    }
    told = {"name": version.model, "platform": _PLATFORM, "max_batch_size": 0, **sides}
    return Reply(200, writing.encode(told))


def _server(request: Request) -> Reply:
    told = {"name": "sublet", "version": sublet.__version__, "extensions": _EXTENSIONS}
    return Reply(200, writing.encode(told))


def _healthy(request: Request) -> Reply:
    return Reply(200, b"")


_PLAIN: Mapping[str, Answerer] = {
    "/v2": _server,
    "/v2/health/live": _healthy,
}
