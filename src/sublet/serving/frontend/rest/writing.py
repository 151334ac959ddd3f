"""Tensors as JSON: rows (`predictions`) and columns (`outputs`), as TensorFlow Serving writes them.

A float is written with the fewest digits that read back as the same float of its own size; NaN and
the infinities as the tokens `NaN`, `Infinity` and `-Infinity`. Strings are text, or {"b64": …} if
the output's name ends in `_bytes`; bytes that are no UTF-8 come out as replacement characters.
"""

import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from sublet.channel.codes import invalid_argument
from sublet.channel.tensors import Array
from sublet.serving.dtypes import BFLOAT16, BY_NUMPY

_NUMPY = orjson.OPT_SERIALIZE_NUMPY


def predictions(outputs: Mapping[str, Array]) -> bytes:
    """The body of a reply in row form."""
    if len(outputs) == 1:
        ((name, array),) = outputs.items()
        if array.ndim == 0:
            raise invalid_argument(f"Tensor name: {name} has no shape information ")
        return b'{"predictions": %b}' % encode(_plain(name, array))
    size = -1
    for name, array in outputs.items():
        if array.ndim == 0:
            raise invalid_argument(f"Tensor name: {name} has no shape information ")
        if size >= 0 and size != len(array):
            raise invalid_argument(
                f"Tensor name: {name} has inconsistent batch size: {len(array)} expecting: {size}"
            )
        size = len(array)
    if not outputs:
        raise invalid_argument("Cannot convert empty tensor map to JSON")
    plain = {name: _plain(name, array) for name, array in outputs.items()}
    rows = [{name: array[index] for name, array in plain.items()} for index in range(size)]
    return b'{"predictions": %b}' % encode(rows)


def columns(outputs: Mapping[str, Array]) -> bytes:
    """The body of a reply in column form."""
    if len(outputs) == 1:
        ((name, array),) = outputs.items()
        return b'{"outputs": %b}' % encode(_plain(name, array))
    if not outputs:
        raise invalid_argument("Cannot convert empty tensor map to JSON")
    plain = {name: _plain(name, array) for name, array in outputs.items()}
    return b'{"outputs": %b}' % encode(plain)


def flat(array: Array) -> Any:
    """The values of a tensor in one row, for `encode`."""
    return _plain("", array.reshape(-1))


def _plain(name: str, array: Array) -> Any:
    """What the encoder can write: a number array as it is, strings as nested lists."""
    kind = BY_NUMPY.get(array.dtype)
    if kind is None or array.dtype.kind == "c":
        word = str(array.dtype) if kind is None else kind.word
        raise invalid_argument(f"Failed to write JSON value for tensor type: {word}")
    if kind.number == BFLOAT16:
        array = array.astype(np.float32)
    if array.dtype.kind == "O":
        return _texts(array.tolist(), name.endswith("_bytes"))
    if array.ndim == 0:
        return array[()]
    return np.ascontiguousarray(array)


def _texts(value: Any, packed: bool) -> Any:
    if type(value) is list:
        return [_texts(item, packed) for item in value]
    raw = value if type(value) is bytes else str(value).encode()
    return {"b64": b64encode(raw).decode()} if packed else raw.decode("utf-8", "replace")


def encode(document: Any) -> bytes:
    """A document that may have arrays and odd numbers in it."""
    encoded = orjson.dumps(document, option=_NUMPY)
    # A number that JSON has no name for was written as null: only then is it worth a second look.
    if b"null" in encoded:
        return json.dumps(_lists(document)).encode()
    return encoded


def _lists(document: Any) -> Any:
    """Arrays as nested lists, float32 values as the doubles that are written the same."""
    if isinstance(document, dict):
        return {name: _lists(item) for name, item in document.items()}
    if isinstance(document, list):
        return [_lists(item) for item in document]
    if isinstance(document, np.ndarray | np.generic):
        document = np.asarray(document)
        if document.dtype.kind == "f" and document.dtype != np.float64:
            return [_lists(item) for item in document] if document.ndim else float(str(document))
        return document.tolist()
    return document
