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
from collections.abc import Mapping
from typing import Any

from sublet.protobuf_fields import Malformed, fields, messages, signed, text

GRAPH = "saved_model.pb"
ANY = 0
"""Stands for the type of an input that is not known before the call: a function's."""


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
            tags.update(text(tag) for tag in messages(value, 4))
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
            method = text(value)
    return Signature(method, *sides)


def _tensor(data: memoryview) -> TensorSpec:
    name, dtype, shape = "", 0, None
    for number, value in fields(data):
        if number == 1 and isinstance(value, memoryview):
            name = text(value)
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
                    extent = signed(size)
            extents.append(extent)
    return tuple(extents)


def _entry(data: memoryview) -> tuple[str, memoryview]:
    """One entry of a map: a key and a message."""
    key, message = "", memoryview(b"")
    for number, value in fields(data):
        if isinstance(value, memoryview):
            if number == 1:
                key = text(value)
            elif number == 2:
                message = value
    return key, message
