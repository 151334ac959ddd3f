"""Shared memory, mapped without a descriptor for each piece.

Python's `mmap` keeps a descriptor for as long as it lives (until 3.13 there is no other way).
A front end has some thousand pieces of memory at a time, and needs its descriptors for clients.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import numpy as np

_FAILED = ctypes.c_void_p(-1).value
_library = ctypes.CDLL(None, use_errno=True)
_map = _library.mmap
_map.restype = ctypes.c_void_p
_map.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_unmap = _library.munmap
_unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def mapped(memory: int, size: int, write: bool) -> memoryview:
    """The bytes of a memfd, whose descriptor is not needed any more. Raises OSError.

    They stay mapped for as long as this view lives, or any other, or an array, that shows them.
    """
    # Not as an array: arrays of a part of it would refer to the whole, and not to each other.
    return memoryview(np.asarray(_Mapping(memory, size, write)))  # type: ignore[arg-type]


class _Mapping:
    """What the memory belongs to: NumPy keeps it, and it goes with the last who has it."""

    def __init__(self, memory: int, size: int, write: bool) -> None:
        rights = mmap.PROT_READ | (mmap.PROT_WRITE if write else 0)
        found = _map(None, size, rights, mmap.MAP_SHARED, memory, 0)
        if found == _FAILED:
            self._place = (0, 0)
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._place = (found, size)
        self.__array_interface__: dict[str, Any] = {
            "data": (found, not write),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self, unmap: Any = _unmap) -> None:
        # An argument, as the module may be gone before the last array is.
        if self._place[1]:
            unmap(*self._place)
