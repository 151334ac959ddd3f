"""The inputs and outputs of the Open Inference Protocol: as JSON, or as raw bytes behind it."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from sublet.channel.client_protocol import Answer
from sublet.channel.codes import invalid_argument
from sublet.channel.tensors import Array
from sublet.serving.catalogue import Version
from sublet.serving.dtypes import BFLOAT16, BY_NUMPY, BY_OIP_NAME, DATA_TYPES, HALF, STRING
from sublet.serving.frontend.oip_codec import best_classes, raw_contents, raw_tensor
from sublet.serving.frontend.proto.tensors import Unreadable
from sublet.serving.frontend.rest import values, writing
from sublet.serving.frontend.rest.messages import Reply
from sublet.serving.frontend.shared_memory import ClientMemory, Place

_RAW = b"application/octet-stream"


def inputs(
    document: dict[str, Any],
    raw: memoryview,
    shared: ClientMemory,
    memory: Callable[[int], memoryview],
) -> dict[str, Array]:
    """The tensors of a request; `raw` is what follows its JSON. `memory` gives room for those that
    lie in shared memory."""
    found: dict[str, Array] = {}
    at = 0
    for given in objects(document, "inputs"):
        name = text(given, "name", "an input")
        kind = BY_OIP_NAME.get(text(given, "datatype", f'input "{name}"'))
        if kind is None or kind.array is None:
            raise invalid_argument(
                f'Input "{name}" has a datatype that is not known: {given["datatype"]}'
            )
        shape = given.get("shape")
        if type(shape) is not list or not all(
            type(size) is int and 0 <= size < 2**40 for size in shape
        ):
            raise invalid_argument(f'Input "{name}" has no shape: a list of sizes.')
        if len(shape) > 32:
            raise invalid_argument(f'Input "{name}" has more than 32 dimensions.')
        parameters = one_object(given, "parameters")
        if name in found:
            raise invalid_argument(f'Input "{name}" is given twice.')
        contents = shared.read(parameters, memory)
        if contents is None:
            size = parameters.get("binary_data_size")
            if size is None:
                found[name] = _shaped(name, given.get("data"), kind.number, shape)
                continue
            if type(size) is not int or not 0 <= size <= len(raw) - at:
                raise invalid_argument(
                    f'Input "{name}" has fewer bytes in the request than it says.'
                )
            contents = raw[at : at + size]
            at += size
        try:
            array = raw_tensor(kind, contents, tuple(shape))
        except Unreadable as wrong:
            raise invalid_argument(f'Input "{name}" cannot be read: {wrong}.') from None
        # In the middle of a body it may lie crooked in memory; a copy does not.
        found[name] = array if array.flags.aligned else array.copy()
    if at != len(raw):
        raise invalid_argument(f"{len(raw) - at} bytes of the request belong to no input.")
    return found


def _shaped(name: str, data: Any, dtype: int, shape: list[int]) -> Array:
    """Data of JSON, flat or nested: the protocol allows both."""
    if type(data) is not list:
        raise invalid_argument(f'Input "{name}" has no data: a list of values.')
    if dtype in (HALF, BFLOAT16):
        raise invalid_argument(
            f'Input "{name}": {DATA_TYPES[dtype].oip_name} can only be sent as raw bytes.'
        )
    array = values.tensor(data, dtype)
    if array.size != prod(shape):
        raise invalid_argument(
            f'Input "{name}" has {array.size} values, but its shape {shape} has {prod(shape)}.'
        )
    return array.reshape(shape)


def objects(document: Mapping[str, Any], name: str) -> Sequence[dict[str, Any]]:
    """A list of objects under a key; empty if it is not there."""
    value = document.get(name, [])
    if type(value) is not list or not all(type(each) is dict for each in value):
        raise invalid_argument(f"'{name}' is a list of objects.")
    return value


def one_object(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object under a key; empty if it is not there."""
    value = document.get(name, {})
    if type(value) is not dict:
        raise invalid_argument(f"'{name}' is an object.")
    return value


def text(document: Mapping[str, Any], key: str, what: str) -> str:
    value = document.get(key)
    if type(value) is not str:
        raise invalid_argument(f"'{key}' of {what} is a string.")
    return value


def outcome(
    version: Version,
    identity: str | None,
    wanted: Mapping[str, Mapping[str, Any]],
    places: Mapping[str, Place | None],
    all_raw: bool,
    answer: Answer,
) -> Reply:
    """The reply with the outputs; `wanted` has the parameters of those that were named, and
    `places` where in shared memory some of them go."""
    outputs: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for name, array in answer.outputs.items():
        kind = BY_NUMPY.get(array.dtype)
        if kind is None or not kind.oip_name:
            raise invalid_argument(
                f'Output "{name}" is of type {array.dtype}, which the protocol cannot say.'
            )
        asked = wanted.get(name, {})
        if classes := asked.get("classification"):
            array, kind = best_classes(name, array, classes), DATA_TYPES[STRING]
        output: dict[str, Any] = {
            "name": name,
            "datatype": kind.oip_name,
            "shape": list(array.shape),
        }
        if (place := places.get(name)) is not None:
            output["parameters"] = place.write(name, raw_contents(array)).parameters()
        elif asked.get("binary_data", all_raw) is True:
            parts.append(raw_contents(array))
            output["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            output["data"] = writing.flat(array)
        outputs.append(output)
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
