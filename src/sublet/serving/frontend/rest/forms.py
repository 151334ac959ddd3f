"""The inputs of a predict request: rows (`instances`) or columns (`inputs`)."""

from collections.abc import Mapping
from math import prod
from typing import Any

from sublet.channel.codes import Code, invalid_argument
from sublet.channel.tensors import Array
from sublet.engine.savedmodel_proto import TensorSpec
from sublet.errors import ServingError
from sublet.serving.frontend import examples
from sublet.serving.frontend.checks import shape_text
from sublet.serving.frontend.rest.documents import kind, show
from sublet.serving.frontend.rest.values import (
    BLOCK,
    Shape,
    array_of,
    bytes_of,
    exactly,
    is_b64,
    is_lossless,
    quick,
    shape_of,
    tensor,
)

Specs = Mapping[str, TensorSpec]


def rows(instances: list[Any], specs: Specs, truths: bool = True) -> dict[str, Array]:
    """The inputs of a request in row form: one value, or one object of named values, per row.
    `truths`: whether there may be a `true` or `false` in it."""
    first = instances[0]
    names = sorted(specs)
    if type(first) is not dict and len(names) > 1:
        raise invalid_argument(
            "instances is a plain list, but expecting list of objects as multiple input tensors "
            "required as per tensorinfo_map"
        )
    if _is_named(first):
        return _quick_columns(instances, specs) or _rows(instances, specs, names, None)
    found = quick(instances, specs[names[0]].dtype, truths)
    return _rows(instances, specs, names, names[0]) if found is None else {names[0]: found}


def columns(inputs: Any, specs: Specs, truths: bool = True) -> dict[str, Array]:
    """The inputs of a request in column form: one tensor, or an object of named tensors."""
    if not _is_named(inputs):
        if len(specs) > 1:
            raise invalid_argument(
                "inputs is a plain value/list, but expecting an object as multiple input tensors "
                "required as per tensorinfo_map"
            )
        (name,) = specs
        return {name: tensor(inputs, specs[name].dtype, truths)}
    found = {}
    for name, spec in specs.items():
        if name not in inputs:
            raise invalid_argument(f"Missing named input: {name} in 'inputs' object.")
        found[name] = tensor(inputs[name], spec.dtype, truths)
    return found


def _rows(
    instances: list[Any], specs: Specs, names: list[str], only: str | None
) -> dict[str, Array]:
    """The inputs of rows among which one is odd; `only` is the input of rows that are plain values,
    None if they are objects of named ones."""
    values: dict[str, list[Any]] = {name: [] for name in names}
    shapes: dict[str, Shape] = {}
    for start in range(0, len(instances), BLOCK):
        block = instances[start : start + BLOCK]
        found = _quick_columns([{only: row} for row in block] if only is not None else block, specs)
        if found and all(shapes.get(name) == found[name].shape[1:] for name in names):
            for name in names:
                values[name] += found[name].reshape(-1).tolist()
            continue
        for index, row in enumerate(block, start):
            _add_row(index, row, specs, only, values, shapes)
    return {
        name: array_of(values[name], specs[name].dtype, (len(instances), *shapes[name]))
        for name in names
    }


def _add_row(
    index: int,
    row: Any,
    specs: Specs,
    only: str | None,
    values: dict[str, list[Any]],
    shapes: dict[str, Shape],
) -> None:
    if _is_named(row) == (only is not None):
        expected, given = ("value/list", "object") if only is not None else ("object", "list")
        raise invalid_argument(
            f"Expecting {expected} but got {given} at item {index} of input list"
        )
    if only is not None:
        row = {only: row}
    for name, value in row.items():
        key = "" if only is not None else f" key: {name}"
        try:
            if name not in specs:
                raise invalid_argument(f"JSON object: does not have named input: {name}")
            values[name] += _row(value, name, specs[name].dtype, shapes)
        except ServingError as failed:
            raise invalid_argument(
                f"Failed to process element: {index}{key} of "
                f"'instances' list. Error: {Code(failed.code).name}: {failed.message}"
            ) from None
    if row.keys() != specs.keys():
        raise invalid_argument(
            f"Failed to process element: {index} of 'instances' list. JSON object: "
            f"{show(row)} keys must be equal to: {','.join(sorted(specs))}"
        )


def _quick_columns(rows: list[Any], specs: Specs) -> dict[str, Array] | None:
    if not all(type(row) is dict and row.keys() == specs.keys() for row in rows):
        return None
    found = {}
    for name, spec in specs.items():
        column = quick([row[name] for row in rows], spec.dtype)
        if column is None:
            return None
        found[name] = column
    return found


def _row(value: Any, name: str, dtype: int, shapes: dict[str, Shape]) -> list[Any]:
    """The values of one row, which must be shaped as the first."""
    shape = shape_of(value)
    values = exactly(value, shape, dtype)
    first = shapes.setdefault(name, shape)
    if prod(first) != len(values):
        raise invalid_argument(f"Expecting tensor size: {prod(first)} but got: {len(values)}")
    if first != shape:
        raise invalid_argument(f"Expecting shape {shape_text(first)} but got: {shape_text(shape)}")
    return values


def _is_named(value: Any) -> bool:
    return type(value) is dict and not is_b64(value)


def examples_of(document: dict[str, Any]) -> list[bytes]:
    """One example per row; the `context`, if any, is part of each."""
    context = b""
    if "context" in document:
        context = _example(document["context"])
    if "examples" not in document:
        raise invalid_argument(
            f"JSON Value: {show(document)} When method is classify, key 'examples' is expected and "
            "was not found"
        )
    given = document["examples"]
    if type(given) is not list:
        raise invalid_argument(
            f"JSON Value: {show(document)} Expecting 'examples' value to be an list/array"
        )
    if not given:
        raise invalid_argument(f"JSON Value: {show(document)} 'examples' value is an empty array")
    return examples.with_context(context, [_example(each) for each in given])


def _example(value: Any) -> bytes:
    if type(value) is not dict:
        raise invalid_argument(f"Example must be JSON object but got JSON {kind(value)}")
    return examples.serialize({name: _feature(name, content) for name, content in value.items()})


def _feature(name: str, content: Any) -> list[Any]:
    found: list[Any] = []
    for value in content if type(content) is list else [content]:
        item = _item(name, value)
        if found and type(found[0]) is not type(item):
            expected = {bytes: "bytes", float: "float", int: "int64"}[type(found[0])]
            raise invalid_argument(
                f"Unexpected element type in feature: {name} expecting type: {expected}"
            )
        found.append(item)
    return found


def _item(name: str, value: Any) -> bytes | int | float:
    if type(value) is bool:
        return int(value)
    if type(value) is str:
        return value.encode("utf-8", "replace")
    if type(value) is int:
        if value >= 2**63:
            raise invalid_argument(f"Feature: {name} has uint64 element. Only int64 is supported.")
        return value
    if type(value) is float:
        if not is_lossless(value):
            raise invalid_argument(
                f"Cannot convert JSON value: {show(value)} to float without loss of precision."
            )
        return value
    if is_b64(value):
        return bytes_of(value)
    raise invalid_argument(f"Feature: {name} has element with unexpected JSON type: {kind(value)}")
