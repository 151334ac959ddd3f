"""The types of tensors, as TensorFlow, NumPy and the Open Inference Protocol call them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

STRING = 7
BFLOAT16 = 14
HALF = 19


class Kind(NamedTuple):
    number: int  # As in TensorFlow's DataType.
    word: str  # As TensorFlow's errors say it.
    array: np.dtype[Any] | None
    """As NumPy has it; None if it takes a package that is not installed."""
    triton: str = ""
    """As in the Open Inference Protocol; empty if it is not known there."""

    @property
    def name(self) -> str:
        """As in DataType: `DT_FLOAT`."""
        return f"DT_{self.word.upper()}"


def _bfloat16() -> np.dtype[Any] | None:
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        return None
    found: np.dtype[Any] = np.dtype(bfloat16)
    return found


KINDS: Mapping[int, Kind] = {
    kind.number: kind
    for kind in (
        Kind(1, "float", np.dtype(np.float32), "FP32"),
        Kind(2, "double", np.dtype(np.float64), "FP64"),
        Kind(3, "int32", np.dtype(np.int32), "INT32"),
        Kind(4, "uint8", np.dtype(np.uint8), "UINT8"),
        Kind(5, "int16", np.dtype(np.int16), "INT16"),
        Kind(6, "int8", np.dtype(np.int8), "INT8"),
        Kind(STRING, "string", np.dtype(object), "BYTES"),
        Kind(8, "complex64", np.dtype(np.complex64)),
        Kind(9, "int64", np.dtype(np.int64), "INT64"),
        Kind(10, "bool", np.dtype(np.bool_), "BOOL"),
        Kind(BFLOAT16, "bfloat16", _bfloat16(), "BF16"),
        Kind(17, "uint16", np.dtype(np.uint16), "UINT16"),
        Kind(18, "complex128", np.dtype(np.complex128)),
        Kind(HALF, "half", np.dtype(np.float16), "FP16"),
        Kind(22, "uint32", np.dtype(np.uint32), "UINT32"),
        Kind(23, "uint64", np.dtype(np.uint64), "UINT64"),
    )
}
ARRAYS: Mapping[np.dtype[Any], Kind] = {k.array: k for k in KINDS.values() if k.array is not None}
TRITON: Mapping[str, Kind] = {k.triton: k for k in KINDS.values() if k.triton}


def word(number: int) -> str:
    """A type as TensorFlow's errors say it, known or not."""
    kind = KINDS.get(number)
    return f"type {number}" if kind is None else kind.word
