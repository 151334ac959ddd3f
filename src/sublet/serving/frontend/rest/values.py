"""Tensors out of JSON values, with TensorFlow Serving's rules and words.

Each is read twice over in the code, and once in the run: `quick` takes what is in order at the
speed of C, and says None to anything odd; `exactly` then goes value by value, and is the meaning
of the rules. They agree wherever `quick` answers. In a long list only the block that has the odd
value is read value by value, so a mistake at the end of a large body is found fast.
"""

import base64
import binascii
import struct
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np

from sublet.channel.codes import Code, invalid_argument
from sublet.channel.tensors import Array
from sublet.errors import ServingError
from sublet.serving.dtypes import BFLOAT16, DATA_TYPES, STRING, word
from sublet.serving.frontend.rest.documents import kind, show

Shape = tuple[int, ...]

_BOOL = 10
_MOST_DIMENSIONS = 32
BLOCK = 64
"""Values that are looked at one by one for the sake of one that is odd."""
_LETTERS = {
    1: "f",
    2: "d",
    3: "i",
    4: "B",
    5: "h",
    6: "b",
    9: "q",
    17: "H",
    19: "e",
    22: "I",
    23: "Q",
}
"""The number types of `struct`, which refuses what does not fit into them."""
_WHOLE = {1: 24, 2: 53, 19: 11}
"""Bits of a whole number that a float type can hold exactly."""
_LIMITS = {
    number: np.iinfo(DATA_TYPES[number].array) for number in _LETTERS if number not in _WHOLE
}
_LARGEST = {number: float(np.finfo(DATA_TYPES[number].array).max) for number in _WHOLE}


def tensor(value: Any, dtype: int, truths: bool = True) -> Array:
    found = quick(value, dtype, truths)
    if found is not None:
        return found
    shape = shape_of(value)
    return array_of(exactly(value, shape, dtype), dtype, shape)


def bytes_of(value: Mapping[str, Any]) -> bytes:
    """What a {"b64": …} stands for; both alphabets, with or without padding."""
    if not is_b64(value):
        raise invalid_argument(f"JSON Value: {show(value)} not formatted correctly for base64 data")
    text: str = value["b64"]
    try:
        packed = text.encode("ascii").translate(_URL_SAFE, b" \t\n\v\f\r")
        bare = packed.rstrip(b"=")
        if len(packed) - len(bare) not in (0, -len(bare) % 4):
            raise invalid_argument("Unable to base64 decode")
        return base64.b64decode(bare + b"=" * (-len(bare) % 4), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise invalid_argument("Unable to base64 decode") from None


_URL_SAFE = bytes.maketrans(b"-_", b"+/")


def is_lossless(number: float, dtype: int = 1) -> bool:
    """Whether a float type can hold a number of a JSON document."""
    if type(number) is int:
        return bool(abs(number) < 2 ** _WHOLE[dtype])
    return not _LARGEST[dtype] < abs(number) < float("inf")


# In order, at the speed of C


def quick(value: Any, dtype: int, truths: bool = True) -> Array | None:
    """The tensor if all is in order. `truths`: there may be a `true` or `false` in it."""
    shape = shape_of(value)
    flat: list[Any] = value if shape else [value]
    for size in shape[1:]:
        if len(flat) == 1:
            flat = flat[0]
            continue
        if set(map(type, flat)) != {list} or set(map(len, flat)) != {size}:
            return None
        flat = list(chain.from_iterable(flat))
    letter = _LETTERS.get(dtype)
    if letter is not None:
        # To `struct` a truth value is a number, too.
        if truths and bool in set(map(type, flat)):
            return None
        return _quick_numbers(flat, shape, dtype, letter)
    kinds = set(map(type, flat))
    if dtype == _BOOL and kinds <= {bool}:
        return np.array(flat, np.bool_).reshape(shape)
    if dtype == STRING and kinds <= {str}:
        try:
            return np.array([text.encode() for text in flat], object).reshape(shape)
        except UnicodeEncodeError:
            return None
    return None


def _quick_numbers(flat: list[Any], shape: Shape, dtype: int, letter: str) -> Array | None:
    try:
        packed = struct.pack(f"{len(flat)}{letter}", *flat)
    except (struct.error, OverflowError):
        return None
    found = np.frombuffer(packed, DATA_TYPES[dtype].array)
    # To `struct` a whole number is a float, however much of it is lost.
    if (
        dtype in _WHOLE
        and not _all_small(found, _WHOLE[dtype])
        and not all(is_lossless(item, dtype) for item in flat)
    ):
        return None
    return found.reshape(shape)


@np.errstate(over="ignore", invalid="ignore")
def _all_small(found: Array, bits: int) -> bool:
    """Whether no number is as large as 2 ** bits; may say no when it is so (one fast look)."""
    if found.itemsize == 2:
        found = found.astype(np.float32)
    return bool(np.dot(found, found) < 4.0**bits)


# Value by value


def exactly(value: Any, shape: Shape, dtype: int) -> list[Any]:
    """The values in one row, each held against the rules."""
    found: list[Any] = []
    _fill(value, 0, shape, dtype, found)
    return found


def _fill(value: Any, level: int, shape: Shape, dtype: int, found: list[Any]) -> None:
    if type(value) is not list:
        if level != len(shape):
            raise invalid_argument(
                f"JSON Value: {show(value)} found at incorrect level: {level + 1} in the JSON DOM. "
                f"Expected at level: {len(shape)}"
            )
        found.append(_item(value, dtype))
        return
    if level >= len(shape):
        raise invalid_argument(
            f"Encountered list at unexpected level: {level} expected < {len(shape)}"
        )
    if len(value) != shape[level]:
        raise invalid_argument(
            f"Encountered list at unexpected size: {len(value)} at level: {level} "
            f"expected size: {shape[level]}"
        )
    if len(value) <= BLOCK:
        for item in value:
            _fill(item, level + 1, shape, dtype, found)
        return
    for start in range(0, len(value), BLOCK):
        block = value[start : start + BLOCK]
        good = quick(block, dtype)
        if good is not None and good.shape == (len(block), *shape[level + 1 :]):
            found += good.reshape(-1).tolist()
            continue
        for item in block:
            _fill(item, level + 1, shape, dtype, found)


def _item(value: Any, dtype: int) -> Any:
    if type(value) is dict:
        if dtype != STRING:
            raise _mistyped(value, dtype)
        return bytes_of(value)
    if dtype in _WHOLE:
        if type(value) not in (int, float):
            raise _mistyped(value, dtype)
        if not is_lossless(value, dtype):
            raise invalid_argument(
                f"Cannot convert JSON value: {show(value)} to {word(dtype)} "
                "without loss of precision."
            )
    elif dtype in _LIMITS:
        limits = _LIMITS[dtype]
        if type(value) is not int or not limits.min <= value <= limits.max:
            raise _mistyped(value, dtype)
    elif dtype == _BOOL:
        if type(value) is not bool:
            raise _mistyped(value, dtype)
    elif dtype == STRING:
        if type(value) is not str:
            raise _mistyped(value, dtype)
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise invalid_argument(
                "JSON Parse error: The surrogate pair in string is invalid."
            ) from None
    else:
        raise ServingError(
            f"Conversion of JSON Value: {show(value)} to type: {word(dtype)}", Code.UNIMPLEMENTED
        )
    return value


def _mistyped(value: Any, dtype: int) -> ServingError:
    return invalid_argument(
        f"JSON Value: {show(value)} Type: {kind(value)} is not of expected type: {word(dtype)}"
    )


def array_of(values: list[Any], dtype: int, shape: Shape) -> Array:
    """A tensor of values that `exactly` has let pass."""
    if dtype == STRING:
        return np.array(values, object).reshape(shape)
    array = DATA_TYPES[dtype].array if dtype in DATA_TYPES else None
    if array is None or dtype == BFLOAT16:
        raise ServingError(f"JSON cannot hold tensors of type: {word(dtype)}", Code.UNIMPLEMENTED)
    return np.array(values, array).reshape(shape)


def shape_of(value: Any) -> Shape:
    """The shape, going by the first element of each list."""
    shape = []
    while type(value) is list:
        shape.append(len(value))
        if not value:
            break
        value = value[0]
        if len(shape) > _MOST_DIMENSIONS:
            raise invalid_argument(f"A tensor has at most {_MOST_DIMENSIONS} dimensions.")
    return tuple(shape)


def is_b64(value: Any) -> bool:
    """Whether it stands for bytes: an object with this one key."""
    return type(value) is dict and len(value) == 1 and type(value.get("b64")) is str
