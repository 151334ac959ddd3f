"""Plain values as JSON, with the arrays among them kept beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Array = Callable[[], Any]
"""Gives an array when it is written, so that they need not all be there at once."""


class NotPlain(Exception):
    """The value is something else than numbers, text, arrays, and lists, tuples and dicts of
    them."""


class Packer:
    """Makes values fit for JSON, and collects their arrays."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []

    def pack(self, value: Any) -> Any:
        """What JSON shall hold of the value; raises NotPlain if it cannot."""
        import numpy as np

        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, np.generic):
            return {"scalar": self._add(np.asarray(value))}
        if isinstance(value, np.ndarray):
            return {"array": self._add(value)}
        if type(value) is list:
            return [self.pack(one) for one in value]
        if type(value) is tuple:
            return {"tuple": [self.pack(one) for one in value]}
        if isinstance(value, dict):
            return {"dict": [[self.pack(key), self.pack(one)] for key, one in value.items()]}
        raise NotPlain(type(value).__name__)

    def _add(self, array: Any) -> int:
        if array.dtype.hasobject:
            raise NotPlain("object")
        self.arrays.append(lambda: array)
        return len(self.arrays) - 1


def unpack(packed: Any, array: Callable[[int], Any]) -> Any:
    """The value again; `array` gives the arrays by their numbers."""
    if isinstance(packed, list):
        return [unpack(one, array) for one in packed]
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    if kind == "array":
        return array(content).copy()
    if kind == "scalar":
        return array(content)[()]
    if kind == "tuple":
        return tuple(unpack(one, array) for one in content)
    return {unpack(key, array): unpack(one, array) for key, one in content}


def same(one: Any, other: Any) -> bool:
    """Whether two plain values are equal, arrays and what is not a number included."""
    import numpy as np

    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (np.ndarray, np.generic)):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return bool(alike and one.tobytes() == other.tobytes())
    return bool(one == other or (one != one and other != other))
