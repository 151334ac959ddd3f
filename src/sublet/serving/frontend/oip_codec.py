"""What the Open Inference Protocol says in the same way over REST and gRPC."""

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import numpy as np

from sublet.channel.codes import Code, invalid_argument
from sublet.channel.tensors import Array
from sublet.engine.savedmodel_proto import Signature, TensorSpec
from sublet.errors import ServingError
from sublet.serving.catalogue import Catalogue, State, Version
from sublet.serving.dtypes import DATA_TYPES, STRING, DataType
from sublet.serving.frontend.proto.tensors import Unreadable, from_bytes, from_list, shaped
from sublet.serving.metrics import Counts, Inferences

_PLATFORM = "tensorflow_savedmodel"
_STATES = {
    State.START: "LOADING",
    State.LOADING: "LOADING",
    State.AVAILABLE: "READY",
    State.UNLOADING: "UNLOADING",
    State.END: "UNAVAILABLE",
}


def raw_tensor(kind: DataType, raw: bytes | memoryview, shape: tuple[int, ...]) -> Array:
    """The tensor in raw contents; of strings, each follows its length in four bytes. Raises
    Unreadable."""
    if kind.number != STRING:
        return shaped(from_bytes(kind, raw, prod(shape)), shape)
    data = bytes(raw)
    strings: list[bytes] = []
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        if at + 4 > len(data) or end > len(data):
            raise Unreadable("a string is cut off")
        strings.append(data[at + 4 : end])
        at = end
    if len(strings) != prod(shape):
        raise Unreadable(f"it has {len(strings)} strings; its shape takes {prod(shape)}")
    return shaped(from_list(kind, strings), shape)


def raw_contents(array: Array) -> bytes:
    """A tensor as `raw_tensor` reads it."""
    if array.dtype.kind != "O":
        return array.tobytes()
    items = array.reshape(-1).tolist()
    return b"".join(part for item in items for part in (len(item).to_bytes(4, "little"), item))


def extensions(usual: Iterable[str], shared_memory: bool) -> list[str]:
    """What the server can do beside the protocol itself."""
    return [*usual, *["system_shared_memory"] * shared_memory]


def check_parameters(given: Mapping[str, Any]) -> None:
    """Refuse what a request asks for that is not done here. It would get an answer that is not
    what it asked for."""
    if given.get("sequence_id"):
        raise ServingError(
            "Sequences are not kept: each call stands for itself. Leave sequence_id out.",
            Code.UNIMPLEMENTED,
        )


def best_classes(name: str, array: Array, most: Any) -> Array:
    """The highest scores of each row as `score:index`, best first."""
    if type(most) is not int or most < 0 or array.dtype.kind not in "fiub":
        raise invalid_argument(
            f'Output "{name}" has no classes: classification is a number, and the output numbers.'
        )
    rows = array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)
    best = np.argsort(-rows, axis=1, kind="stable")[:, :most]
    found = np.empty(best.shape, object)
    for row, order in enumerate(best.tolist()):
        for place, index in enumerate(order):
            found[row, place] = f"{rows[row, index]:f}:{index}".encode()
    return found.reshape((*array.shape[:-1], best.shape[1]))


def _datatype(spec: TensorSpec) -> str:
    """The type of a tensor as the protocol names it; empty if it has no name there."""
    kind = DATA_TYPES.get(spec.dtype)
    return "" if kind is None else kind.oip_name


def _shape(spec: TensorSpec) -> list[int]:
    return [-1] if spec.shape is None else list(spec.shape)


def model_metadata(catalogue: Catalogue, name: str, signature: Signature) -> dict[str, Any]:
    """What a model takes and gives, and its versions that can be called."""
    versions = sorted(catalogue.models[name].versions.items())
    sides = {
        side: [
            {"name": one, "datatype": _datatype(spec), "shape": _shape(spec)}
            for one, spec in specs.items()
        ]
        for side, specs in (("inputs", signature.inputs), ("outputs", signature.outputs))
    }
    return {
        "name": name,
        "versions": [str(number) for number, one in versions if one.state is State.AVAILABLE],
        "platform": _PLATFORM,
        **sides,
    }


def model_config(name: str, signature: Signature) -> dict[str, Any]:
    """As much of Triton's model configuration as clients look at."""
    sides = {
        side: [
            {
                "name": one,
                "data_type": f"TYPE_{_datatype(spec).replace('BYTES', 'STRING') or 'INVALID'}",
                "dims": _shape(spec),
            }
            for one, spec in specs.items()
        ]
        for side, specs in (("input", signature.inputs), ("output", signature.outputs))
    }
    fixed = {"platform": _PLATFORM, "backend": "tensorflow", "max_batch_size": 0}
    return {"name": name, **fixed, **sides}


def repository_index(catalogue: Catalogue, ready: bool) -> list[dict[str, str]]:
    """All versions by name and number, or only those that can be called."""
    return [
        {
            "name": name,
            "version": str(number),
            "state": _STATES[version.state],
            "reason": version.error,
        }
        for name, model in sorted(catalogue.models.items())
        for number, version in sorted(model.versions.items())
        if version.state is State.AVAILABLE or not ready
    ]


def check_change(parameters: Iterable[str]) -> None:
    """Refuse what a client that loads a model asks for beside that."""
    if any(name == "config" or name.startswith("file:") for name in parameters):
        raise ServingError(
            "A model is loaded as it lies on the server's disk: send no config and no files.",
            Code.UNIMPLEMENTED,
        )


def model_statistics(
    catalogue: Catalogue, counts: Counts, name: str, number: int | None
) -> dict[str, Any]:
    """The statistics of a version, of all versions of a model, or of all models if `name` is empty,
    as in Triton's statistics extension. Raises ServingError if there are none."""
    versions: Iterable[Version]
    if name:
        catalogue.find(name, number)
        versions = catalogue.models[name].versions.values()
    else:
        versions = [one for model in catalogue.models.values() for one in model.versions.values()]
    wanted = sorted(
        (version.model, version.number)
        for version in versions
        if version.state is State.AVAILABLE and number in (None, version.number)
    )
    return {"model_stats": [_statistics(*key, counts.get(key, Inferences())) for key in wanted]}


def _statistics(model: str, number: int, calls: Inferences) -> dict[str, Any]:
    def times(count: int, seconds: float) -> dict[str, int]:
        return {"count": count, "ns": int(seconds * 1e9)}

    return {
        "name": model,
        "version": str(number),
        "last_inference": calls.last,
        "inference_count": calls.rows,
        "execution_count": round(calls.batches),
        "inference_stats": {
            "success": times(calls.answered, calls.answered_seconds),
            "fail": times(calls.failed, calls.failed_seconds),
            "queue": times(calls.answered, calls.queued_seconds),
            # Bringing tensors to the device and back is part of what a batch takes.
            "compute_input": times(calls.answered, 0),
            "compute_infer": times(calls.answered, calls.computed_seconds),
            "compute_output": times(calls.answered, 0),
        },
        "batch_stats": [],
    }
