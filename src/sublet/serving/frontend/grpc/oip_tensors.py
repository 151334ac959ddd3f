"""The tensors of the Open Inference Protocol: raw contents, and typed ones."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from sublet.channel.codes import invalid_argument
from sublet.channel.tensors import Array
from sublet.serving.dtypes import BY_NUMPY, BY_OIP_NAME, STRING, DataType
from sublet.serving.frontend.oip_codec import best_classes, raw_contents, raw_tensor
from sublet.serving.frontend.proto.tensors import (
    Data,
    Unreadable,
    from_bytes,
    from_list,
    joined,
    shaped,
)
from sublet.serving.frontend.shared_memory import ClientMemory, Place

_CONTENTS = {
    1: "fp32_contents",
    2: "fp64_contents",
    3: "int_contents",
    4: "uint_contents",
    5: "int_contents",
    6: "int_contents",
    STRING: "bytes_contents",
    9: "int64_contents",
    10: "bool_contents",
    17: "uint_contents",
    22: "uint_contents",
    23: "uint64_contents",
}
_PACKED = (1, 2)


def inputs(
    request: Any,
    raw: Sequence[Data],
    shared: ClientMemory,
    memory: Callable[[int], memoryview],
) -> dict[str, Array]:
    """The inputs of a ModelInferRequest; `raw` are the raw contents of those that lie in no region
    of shared memory. `memory` gives room for those."""
    arrays: dict[str, Array] = {}
    rest = iter(raw)
    for given in request.inputs:
        if given.name in arrays:
            raise invalid_argument(f"Input {given.name} is given twice.")
        contents: Data | None = shared.read(parameters(given), memory)
        if contents is None and raw:
            contents = next(rest, None)
            if contents is None:
                raise invalid_argument(f"Input {given.name} has no raw contents, but others have.")
        try:
            arrays[given.name] = _read(given, contents)
        except (Unreadable, OverflowError) as wrong:
            raise invalid_argument(f"Input {given.name} cannot be read: {wrong}.") from None
    if next(rest, None) is not None:
        raise invalid_argument(f"There are {len(raw)} raw contents, more than inputs for them.")
    return arrays


def _read(given: Any, raw: Data | None) -> Array:
    kind = BY_OIP_NAME.get(given.datatype)
    if kind is None or kind.array is None:
        raise Unreadable(f"the datatype {given.datatype!r} is not known")
    shape = tuple(given.shape)
    if shape and min(shape) < 0:
        raise Unreadable("its shape is not known")
    if raw is None:
        return shaped(_typed(kind, given.contents, prod(shape)), shape)
    if given.HasField("contents"):
        raise Unreadable("it has both contents and raw contents")
    return raw_tensor(kind, raw, shape)


def _typed(kind: DataType, contents: Any, count: int) -> Array:
    field = _CONTENTS.get(kind.number)
    if field is None:
        raise Unreadable(f"{kind.oip_name} is only taken as raw contents")
    values = getattr(contents, field)
    if kind.number in _PACKED:
        return from_bytes(kind, joined(values), count)
    if len(values) != count:
        raise Unreadable(f"it has {len(values)} values; its shape takes {count}")
    return from_list(kind, list(values))


def parameters(given: Any) -> dict[str, Any]:
    """The parameters of a request, an input or an output."""
    return {
        name: getattr(value, kind)
        for name, value in given.parameters.items()
        if (kind := value.WhichOneof("parameter_choice"))
    }


class Wanted(NamedTuple):
    """How an output is to be given."""

    classes: Any = None  # Of how many classes, if not all.
    place: Place | None = None  # In a region of shared memory, if not in the answer.


def wanted(request: Any, shared: ClientMemory) -> dict[str, Wanted]:
    """The outputs that a ModelInferRequest asks for, all if none."""
    found = {}
    for output in request.outputs:
        asked = parameters(output)
        found[output.name] = Wanted(asked.get("classification"), shared.place(asked))
    return found


def fill(
    response: Any, outputs: Mapping[str, Array], asked: Mapping[str, Wanted], raw: bool
) -> None:
    """Add outputs to a response, as raw contents or typed ones; of some only the best classes, and
    of some only where they are."""
    outputs = {
        name: best_classes(name, array, most)
        if (most := asked.get(name, Wanted()).classes)
        else array
        for name, array in outputs.items()
    }
    raw = raw or any(BY_NUMPY[array.dtype].number not in _CONTENTS for array in outputs.values())
    for name, array in outputs.items():
        kind = BY_NUMPY[array.dtype]
        if not kind.oip_name:
            raise invalid_argument(
                f"Output {name} is {kind.word}, which this protocol does not know. "
                "Ask for other outputs, or use Predict."
            )
        filled = response.outputs.add(name=name, datatype=kind.oip_name, shape=array.shape)
        place = asked.get(name, Wanted()).place
        if place is not None:
            for key, value in place.write(name, raw_contents(array)).parameters().items():
                kind_of = "string_param" if isinstance(value, str) else "int64_param"
                setattr(filled.parameters[key], kind_of, value)
            if raw:
                response.raw_output_contents.append(b"")  # Clients count them.
        elif raw:
            response.raw_output_contents.append(raw_contents(array))
        else:
            values = [array.tobytes()] if kind.number in _PACKED else array.reshape(-1).tolist()
            getattr(filled.contents, _CONTENTS[kind.number]).extend(values)
