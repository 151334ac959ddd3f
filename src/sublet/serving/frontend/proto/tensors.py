"""TensorProto to NumPy and back, without TensorFlow.

Reading takes every form that clients send, and no memory beyond what was sent, except for a short
list that is to be repeated, up to a limit. Writing gives typed fields, as TensorFlow Serving does.
"""

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from google.protobuf.unknown_fields import UnknownFieldSet

from sublet.channel.codes import Code, invalid_argument
from sublet.channel.tensors import MOST_DIMENSIONS, Array
from sublet.engine.savedmodel_proto import Signature, TensorSpec
from sublet.errors import ServingError
from sublet.serving.dtypes import BFLOAT16, BY_NUMPY, DATA_TYPES, HALF, STRING, DataType
from sublet.serving.frontend.proto import message, serving
from sublet.serving.frontend.proto.wire import head

LARGEST_FILL = 1 << 26
"""Bytes that repeating a short list of values may take."""

Data = bytes | memoryview

_BOOL = 10
_PACKED = {1: "float_val", 2: "double_val", 8: "scomplex_val", 18: "dcomplex_val"}
_LISTS = {
    3: "int_val",
    4: "int_val",
    5: "int_val",
    6: "int_val",
    STRING: "string_val",
    9: "int64_val",
    _BOOL: "bool_val",
    BFLOAT16: "half_val",
    17: "int_val",
    HALF: "half_val",
    22: "uint32_val",
    23: "uint64_val",
}
_TENSOR = message("tensorflow.TensorProto")
_NUMBERS: dict[str, int] = {field.name: field.number for field in _TENSOR.DESCRIPTOR.fields}


class Unreadable(ValueError):
    """A TensorProto that is no tensor; says why."""


def read(name: str, given: Any, content: Data | None = None) -> Array:
    """The tensor of a TensorProto; `name` is for the error. `content` is its tensor_content, if
    that was taken out of it."""
    try:
        return _read(given, given.tensor_content if content is None else content)
    except (Unreadable, OverflowError) as wrong:
        raise invalid_argument(f"tensor parsing error: {name} ({wrong})") from None


def _read(given: Any, content: Data) -> Array:
    kind = DATA_TYPES.get(given.dtype)
    if kind is None or kind.array is None:
        raise Unreadable(f"tensors of type {given.dtype} are not served")
    dims = given.tensor_shape
    shape = tuple([dim.size for dim in dims.dim])
    if dims.unknown_rank or (shape and min(shape) < 0):
        raise Unreadable("its shape is not known")
    count = prod(shape)
    if content:
        array = _content(kind, content, count)
    elif kind.number in _PACKED:
        array = _filled(_packed(kind, given), count)
    else:
        array = _filled(_listed(kind, getattr(given, _LISTS[kind.number])), count)
    return shaped(array, shape)


def shaped(array: Array, shape: tuple[int, ...]) -> Array:
    if len(shape) > MOST_DIMENSIONS:
        raise Unreadable(f"{len(shape)} dimensions are too many")
    try:
        return array.reshape(shape)
    except ValueError:
        raise Unreadable("its dimensions are too large") from None


def from_bytes(kind: DataType, data: Data, count: int) -> Array:
    """Numbers as they lie in memory, little-endian; exactly `count` of them."""
    assert kind.array is not None
    size = count * kind.array.itemsize
    if len(data) != size:
        raise Unreadable(f"it has {len(data)} bytes; its shape and type take {size}")
    if kind.number == _BOOL:
        # NumPy must not see a bool that is neither 0 nor 1.
        return np.not_equal(np.frombuffer(data, np.uint8), 0)
    return np.frombuffer(data, kind.array)


def from_list(kind: DataType, values: list[Any]) -> Array:
    """An array of values that come one by one."""
    if kind.number == STRING:
        return np.array(values, object)
    assert kind.array is not None
    return _numbers(values, kind.array)


def _numbers(values: list[Any], to: np.dtype[Any]) -> Array:
    """Narrow whole numbers are held against their bounds here: NumPy 1 would cut them off."""
    if to.kind not in "iu" or to.itemsize == 8:
        return np.array(values, to)
    wide = np.array(values, np.int64)
    array = wide.astype(to)
    cut = wide[array != wide]
    if cut.size:
        raise OverflowError(f"{cut[0]} is out of bounds for {to}")
    return array


def joined(chunks: Any) -> bytes:
    """A packed list, which may come in several chunks."""
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _content(kind: DataType, content: Data, count: int) -> Array:
    if kind.number == STRING:
        return from_list(kind, _strings(bytes(content), count))
    return from_bytes(kind, content, count)


def _packed(kind: DataType, given: Any) -> Array:
    assert kind.array is not None
    field = _PACKED[kind.number]
    data = joined(getattr(given, field))
    if unknown := UnknownFieldSet(given):
        data += _unpacked(unknown, _NUMBERS[field])
    if len(data) % kind.array.itemsize:
        raise Unreadable(f"{field} has {len(data)} bytes, which are no whole numbers")
    return np.frombuffer(data, kind.array)


def _unpacked(unknown: Any, number: int) -> bytes:
    """Numbers that an old client sent one by one; that form is unknown where bytes are expected."""
    sizes = {1: 8, 5: 4}
    return b"".join(
        field.data.to_bytes(sizes[field.wire_type], "little")
        for field in unknown
        if field.field_number == number and field.wire_type in sizes
    )


def _listed(kind: DataType, values: Any) -> Array:
    if kind.number in (HALF, BFLOAT16):
        return _numbers(list(values), np.dtype(np.uint16)).view(kind.array)
    return from_list(kind, list(values))


def _filled(values: Array, count: int) -> Array:
    """As many values as the shape has: the last one is repeated, and zeros stand for none."""
    given = len(values)
    if given == count:
        return values
    if given > count:
        raise Unreadable(f"it has {given} values; its shape takes {count}")
    zero = b"" if values.dtype == object else values.dtype.type(0)
    last = values[-1] if given else zero
    size = values.itemsize + (len(last) if values.dtype == object else 0)
    if count * size > LARGEST_FILL:
        raise Unreadable(f"it has {given} values; its shape takes {count}, too many to fill in")
    filled = np.full(count, last, values.dtype)
    filled[:given] = values
    return filled


def _strings(content: bytes, count: int) -> list[bytes]:
    """Strings as TensorFlow packs them: all lengths as varints, then all bytes."""
    if count > len(content):
        raise Unreadable(f"it has {len(content)} bytes; its shape takes {count} strings")
    lengths = []
    at = 0
    for _ in range(count):
        length = shift = 0
        while True:
            if at >= len(content) or shift > 63:
                raise Unreadable("its lengths of strings are damaged")
            byte = content[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        lengths.append(length)
    if sum(lengths) != len(content) - at:
        raise Unreadable("its lengths of strings are not those of its bytes")
    strings = []
    for length in lengths:
        strings.append(content[at : at + length])
        at += length
    return strings


def write(array: Array) -> bytes:
    return b"".join(parts(array))


def parts(array: Array) -> tuple[bytes, bytes | memoryview]:
    """The serialized TensorProto of a tensor in two parts: numbers are not copied for it."""
    kind = BY_NUMPY.get(array.dtype)
    if kind is None:
        raise ServingError(f"The model gave a tensor of type {array.dtype}.", Code.INTERNAL)
    number = kind.number
    begin = _begin(number, array.shape)
    field = "bool_val" if number == _BOOL else _PACKED.get(number)
    if field is not None:
        # As it lies in memory is how it is packed; a bool is a varint of one byte.
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return begin + head(_NUMBERS[field], flat.nbytes), flat.data
    if number in (HALF, BFLOAT16):
        array = np.ascontiguousarray(array).view(np.uint16)
    listed: bytes = _TENSOR(**{_LISTS[number]: array.reshape(-1).tolist()}).SerializeToString()
    return begin, listed


@lru_cache(4096)
def _begin(number: int, shape: tuple[int, ...]) -> bytes:
    """Type and shape, serialized: the same for most answers of a model."""
    given = _TENSOR(dtype=number)
    given.tensor_shape.SetInParent()
    for size in shape:
        given.tensor_shape.dim.add(size=size)
    begin: bytes = given.SerializeToString()
    return begin


def signature_def(signature: Signature) -> Any:
    return _fill(message("tensorflow.SignatureDef")(), signature)


def signature_defs(signatures: Mapping[str, Signature]) -> Any:
    filled = serving("SignatureDefMap")()
    for name, signature in signatures.items():
        _fill(filled.signature_def[name], signature)
    return filled


def _fill(filled: Any, signature: Signature) -> Any:
    filled.method_name = signature.method
    for name, spec in signature.inputs.items():
        _info(filled.inputs[name], spec)
    for name, spec in signature.outputs.items():
        _info(filled.outputs[name], spec)
    return filled


def _info(info: Any, spec: TensorSpec) -> None:
    info.name = spec.name
    info.dtype = spec.dtype
    if spec.shape is None:
        info.tensor_shape.unknown_rank = True
    else:
        info.tensor_shape.SetInParent()
        for size in spec.shape:
            info.tensor_shape.dim.add(size=size)
