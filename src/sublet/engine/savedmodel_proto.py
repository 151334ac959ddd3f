"""What a SavedModel says of itself, read from `saved_model.pb` without TensorFlow.

Owns a reader for the few fields of the SavedModel message that name tags, signatures and tensors.
It walks over the graph without looking at it, so a model of gigabytes costs as little as a small
one. Never changes anything, and never runs the model.

    SavedModel 2: meta_graphs ─ MetaGraphDef 1: meta_info_def (4: tags)
                                             3: saver_def (3: restore_op_name)
                                             5: signature_def ─ 1: inputs, 2: outputs, 3: method
"""

import dataclasses
import mmap
import os
from collections.abc import Iterator, Mapping
from typing import Any

GRAPH = "saved_model.pb"
ANY = 0
"""Stands for the type of an input that is not known before the call: a function's."""
_VARINT = 0
_INT64 = 1 << 63


@dataclasses.dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a signature."""

    name: str
    """The tensor's name in the graph, as `x:0`; empty for one that is not dense."""
    dtype: int  # As in TensorFlow's DataType.
    shape: tuple[int, ...] | None = None
    """-1 for a dimension of any size; None for any rank."""


@dataclasses.dataclass(frozen=True, slots=True)
class Signature:
    """One way to call a model."""

    method: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]

    @classmethod
    def from_message(cls, definition: Any) -> "Signature":
        """The same from a SignatureDef, of whichever package that is."""
        return cls(definition.method_name, _specs(definition.inputs), _specs(definition.outputs))


def _specs(infos: Any) -> dict[str, TensorSpec]:
    return {
        name: TensorSpec(
            info.name,
            info.dtype,
            None
            if info.tensor_shape.unknown_rank or not info.HasField("tensor_shape")
            else tuple(dim.size for dim in info.tensor_shape.dim),
        )
        for name, info in sorted(infos.items())
    }


@dataclasses.dataclass(frozen=True)
class MetaGraph:
    """One graph of a SavedModel; nearly always there is one."""

    tags: frozenset[str]
    signatures: dict[str, Signature]
    variables: bool  # Whether it has any to restore.


class Malformed(ValueError):
    """The bytes are no SavedModel, or not all of one."""


def read(directory: str) -> list[MetaGraph]:
    """The graphs of a SavedModel. Raises OSError if there is none, Malformed if it is damaged."""
    with open(os.path.join(directory, GRAPH), "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise Malformed(f"{GRAPH} is empty")
        # Not closed by hand: the frames of an error hold parts of it. It goes with the last one.
        return parse(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))


def parse(data: memoryview) -> list[MetaGraph]:
    graphs = [_meta_graph(value) for value in messages(data, 2)]
    if not graphs:
        raise Malformed("it has no graph")
    return graphs


def _meta_graph(data: memoryview) -> MetaGraph:
    tags: set[str] = set()
    variables = False
    signatures: dict[str, Signature] = {}
    for number, value in fields(data):
        if not isinstance(value, memoryview):
            continue
        if number == 1:
            tags.update(_text(tag) for tag in messages(value, 4))
        elif number == 5:
            key, signature = _entry(value)
            signatures[key] = _signature(signature)
        elif number == 3:
            variables = any(map(len, messages(value, 3)))
    return MetaGraph(frozenset(tags), signatures, variables)


def _signature(data: memoryview) -> Signature:
    sides: tuple[dict[str, TensorSpec], dict[str, TensorSpec]] = ({}, {})
    method = ""
    for number, value in fields(data):
        if not isinstance(value, memoryview):
            continue
        if number in (1, 2):
            key, tensor = _entry(value)
            sides[number - 1][key] = _tensor(tensor)
        elif number == 3:
            method = _text(value)
    return Signature(method, *sides)


def _tensor(data: memoryview) -> TensorSpec:
    name, dtype, shape = "", 0, None
    for number, value in fields(data):
        if number == 1 and isinstance(value, memoryview):
            name = _text(value)
        elif number == 2 and isinstance(value, int):
            dtype = value
        elif number == 3 and isinstance(value, memoryview):
            shape = _shape(value)
    # A TensorSpec without a shape is one of unknown rank.
    return TensorSpec(name, dtype, shape)


def _shape(data: memoryview) -> tuple[int, ...] | None:
    extents = []
    for number, value in fields(data):
        if number == 3 and value:
            return None
        if number == 2 and isinstance(value, memoryview):
            extent = 0
            for inner, size in fields(value):
                if inner == 1 and isinstance(size, int):
                    extent = size - 2 * _INT64 if size >= _INT64 else size
            extents.append(extent)
    return tuple(extents)


def _entry(data: memoryview) -> tuple[str, memoryview]:
    """One entry of a map: a key and a message."""
    key, message = "", memoryview(b"")
    for number, value in fields(data):
        if isinstance(value, memoryview):
            if number == 1:
                key = _text(value)
            elif number == 2:
                message = value
    return key, message


def messages(data: memoryview, wanted: int) -> Iterator[memoryview]:
    """All values of one field that holds bytes or messages."""
    for number, value in fields(data):
        if number == wanted and isinstance(value, memoryview):
            yield value


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The fields of a message in their order: numbers, or views of bytes. Nothing is copied."""
    at, end = 0, len(data)
    while at < end:
        tag, begin, at = field(data, at)
        if tag >> 3 == 0:
            raise Malformed("a field has the number 0")
        if at > end:
            raise Malformed(f"it ends {at - end} bytes too early")
        yield tag >> 3, _varint(data, begin)[0] if tag & 7 == _VARINT else data[begin:at]


def field(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int, int]:
    """The tag of the field that begins here, where its value begins, and where that ends: perhaps
    beyond the data. Raises Malformed."""
    tag, at = _varint(data, at)
    match tag & 7:
        case 0:
            return tag, at, _varint(data, at)[1]
        case 1:
            return tag, at, at + 8
        case 2:
            size, at = _varint(data, at)
            return tag, at, at + size
        case 5:
            return tag, at, at + 4
        case kind:
            raise Malformed(f"a field has the unknown wire type {kind}")


def _varint(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if at >= len(data):
            raise Malformed("it ends in the middle of a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2 * _INT64 - 1), at
        shift += 7
    raise Malformed("a number is longer than ten bytes")


def _text(data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise Malformed("a name is not UTF-8") from None
