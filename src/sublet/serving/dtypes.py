"""The types of tensors, as TensorFlow, NumPy and the Open Inference Protocol call them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

STRING = 7
BFLOAT16 = 14
HALF = 19


class DataType(NamedTuple):
    number: int  # As in TensorFlow's DataType.
    word: str  # As TensorFlow's errors say it.
    array: np.dtype[Any] | None
    """As NumPy has it; None if it takes a package that is not installed."""
    oip_name: str = ""
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


DATA_TYPES: Mapping[int, DataType] = {
    kind.number: kind
    for kind in (
        DataType(1, "float", np.dtype(np.float32), "FP32"),
        DataType(2, "double", np.dtype(np.float64), "FP64"),
        DataType(3, "int32", np.dtype(np.int32), "INT32"),
        DataType(4, "uint8", np.dtype(np.uint8), "UINT8"),
        DataType(5, "int16", np.dtype(np.int16), "INT16"),
        DataType(6, "int8", np.dtype(np.int8), "INT8"),
        DataType(STRING, "string", np.dtype(object), "BYTES"),
        DataType(8, "complex64", np.dtype(np.complex64)),
        DataType(9, "int64", np.dtype(np.int64), "INT64"),
        DataType(10, "bool", np.dtype(np.bool_), "BOOL"),
        DataType(BFLOAT16, "bfloat16", _bfloat16(), "BF16"),
        DataType(17, "uint16", np.dtype(np.uint16), "UINT16"),
        DataType(18, "complex128", np.dtype(np.complex128)),
        DataType(HALF, "half", np.dtype(np.float16), "FP16"),
        DataType(22, "uint32", np.dtype(np.uint32), "UINT32"),
        DataType(23, "uint64", np.dtype(np.uint64), "UINT64"),
    )
}
BY_NUMPY: Mapping[np.dtype[Any], DataType] = {
    k.array: k for k in DATA_TYPES.values() if k.array is not None
}
BY_OIP_NAME: Mapping[str, DataType] = {k.oip_name: k for k in DATA_TYPES.values() if k.oip_name}


def word(number: int) -> str:
    """A type as TensorFlow's errors say it, known or not."""
    kind = DATA_TYPES.get(number)
    return f"type {number}" if kind is None else kind.word
