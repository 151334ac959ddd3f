"""Arrays as bytes: how tensors are written into a record, and read from it without a copy.

    heads    for each tensor: dtype, rank, place (INLINE or BESIDE), nbytes, and its dimensions
    refs     for each tensor that is BESIDE: the number of the memory, the offset in it, 0
    data     of each tensor that is INLINE, filled up to a multiple of 8

Calls that are alike have equal heads, so `layout` is remembered: little is read for each of them.
dtypes are TensorFlow's DataType numbers. A string tensor is an object array of `bytes`; its data
are the lengths (uint32), then the bytes.
"""

import struct
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .records import Malformed

Array = np.ndarray[Any, Any]

INLINE, BESIDE = 0, 1
DT_STRING = 7
DT_BFLOAT16 = 14
ALIGNED = 64
"""As TensorFlow wants its tensors, so that it can use an array's memory as it is."""
MOST_DIMENSIONS = 32
_MOST_TENSORS = 4096
_LARGEST = 1 << 40

_HEAD = struct.Struct("<BBBxIQ")  # dtype, rank, place, 0, nbytes.
REF = struct.Struct("<IIQ")  # Number of the memory, 0, offset.

_DTYPES = {
    1: "f4",
    2: "f8",
    3: "i4",
    4: "u1",
    5: "i2",
    6: "i1",
    7: "O",
    8: "c8",
    9: "i8",
    10: "?",
    17: "u2",
    18: "c16",
    19: "f2",
    22: "u4",
    23: "u8",
}
_BY_NUMBER: dict[int, np.dtype[Any]] = {number: np.dtype(code) for number, code in _DTYPES.items()}
_BY_DTYPE = {dtype: number for number, dtype in _BY_NUMBER.items()}
NAMES = {
    **{number: dtype.name for number, dtype in _BY_NUMBER.items()},
    DT_STRING: "string",
    DT_BFLOAT16: "bfloat16",
}
"""What a user calls each dtype."""


def dtype_of(number: int) -> np.dtype[Any]:
    """NumPy's dtype for TensorFlow's number. Raises Malformed if there is none."""
    found = _BY_NUMBER.get(number)
    if found is not None:
        return found
    if number == DT_BFLOAT16:
        import ml_dtypes  # It comes with TensorFlow; NumPy itself does not know the type.

        return _BY_NUMBER.setdefault(number, np.dtype(ml_dtypes.bfloat16))
    raise Malformed(f"no tensor has dtype {number}")


def number_of(dtype: np.dtype[Any]) -> int:
    """TensorFlow's number for NumPy's dtype. Raises TypeError if there is none."""
    found = _BY_DTYPE.get(dtype)
    if found is not None:
        return found
    if dtype.name == "bfloat16":
        return DT_BFLOAT16
    if dtype.kind in "SU":
        return DT_STRING
    if dtype.newbyteorder("=") in _BY_DTYPE:
        return _BY_DTYPE[dtype.newbyteorder("=")]
    raise TypeError(f"arrays of {dtype} are no tensors, and cannot be sent")


known = _BY_DTYPE.get
"""The same for the usual ones, and at once; None for others."""


class Tensor(NamedTuple):
    """One tensor of a record, as its head describes it."""

    dtype: int
    shape: tuple[int, ...]
    place: int
    nbytes: int


@lru_cache(4096)
def head(dtype: int, shape: tuple[int, ...], place: int, nbytes: int) -> bytes:
    """The head of one tensor. Raises TypeError if it has too many dimensions to be one."""
    if len(shape) > MOST_DIMENSIONS:
        raise TypeError(f"a tensor has at most {MOST_DIMENSIONS} dimensions")
    return _HEAD.pack(dtype, len(shape), place, 0, nbytes) + struct.pack(f"<{len(shape)}q", *shape)


@lru_cache(4096)
def layout(heads: bytes) -> tuple[Tensor, ...]:
    """The tensors that these heads describe. Raises Malformed."""
    found = []
    at = 0
    while at < len(heads):
        if len(heads) - at < _HEAD.size:
            raise Malformed("a tensor's head is cut off")
        number, rank, place, _, nbytes = _HEAD.unpack_from(heads, at)
        at += _HEAD.size
        if rank > MOST_DIMENSIONS or len(heads) - at < 8 * rank or place > BESIDE:
            raise Malformed("a tensor's head is wrong")
        shape = struct.unpack_from(f"<{rank}q", heads, at)
        at += 8 * rank
        if any(size < 0 for size in shape) or prod(size or 1 for size in shape) > _LARGEST:
            raise Malformed("a dimension is negative, or too large")
        count = prod(shape)
        least = 4 * count if number == DT_STRING else count * dtype_of(number).itemsize
        if nbytes > _LARGEST or nbytes < least or (number != DT_STRING and nbytes != least):
            raise Malformed("a tensor has not as many bytes as its shape says")
        found.append(Tensor(number, shape, place, nbytes))
        if len(found) > _MOST_TENSORS:
            raise Malformed("too many tensors in a record")
    return tuple(found)


def view(tensor: Tensor, memory: Any, offset: int) -> Array:
    """The array that lies in this memory; strings are copied. The bounds were checked."""
    if tensor.dtype == DT_STRING:
        return _strings(tensor, memory, offset)
    count = prod(tensor.shape)
    if not count:
        return np.empty(tensor.shape, dtype_of(tensor.dtype))
    return np.frombuffer(memory, dtype_of(tensor.dtype), count, offset).reshape(tensor.shape)


def data(array: Array, number: int) -> Any:
    """The bytes of an array: itself if it can be sent as it is, else a copy."""
    if number == DT_STRING:
        items = [_bytes(item) for item in array.ravel().tolist()]
        lengths = np.fromiter(map(len, items), "<u4", len(items))
        return b"".join([lengths.tobytes(), *items])
    return np.ascontiguousarray(array, dtype_of(number))


def pad(nbytes: int) -> int:
    """Bytes that fill it up to a multiple of 8."""
    return -nbytes % 8


def aligned(nbytes: int) -> int:
    """The next place in a memory where a tensor may begin."""
    return -(-nbytes // ALIGNED) * ALIGNED


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A new array whose memory TensorFlow can use as it is."""
    nbytes = prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + ALIGNED, np.uint8)
    start = -raw.ctypes.data % ALIGNED
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def _bytes(item: Any) -> bytes:
    if isinstance(item, bytes):
        return item
    if isinstance(item, str):
        return item.encode()
    raise TypeError(f"a tensor of strings has bytes or str in it, not {type(item).__name__}")


def _strings(tensor: Tensor, memory: Any, offset: int) -> Array:
    count = prod(tensor.shape)
    lengths = np.frombuffer(memory, "<u4", count, offset).tolist()
    if sum(lengths) + 4 * count != tensor.nbytes:
        raise Malformed("strings are longer or shorter than was said")
    raw = memoryview(memory)
    found = np.empty(count, object)
    at = offset + 4 * count
    for index, length in enumerate(lengths):
        found[index] = bytes(raw[at : at + length])
        at += length
    return found.reshape(tensor.shape)
