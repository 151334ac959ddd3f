"""The GPU of a lease, as a program under it can see it: what is free, and what processes hold.

Asks NVML, which comes with the driver. Where that does not answer, as in some containers, nothing
is known: None. Never opens a CUDA context.
"""

from __future__ import annotations

import ctypes
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_INSUFFICIENT_SIZE = 7
_NOT_AVAILABLE = (1 << 64) - 1
_MOST = 1024


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_uint64), ("free", ctypes.c_uint64), ("used", ctypes.c_uint64)]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("bytes", ctypes.c_uint64),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Card:
    """One GPU or MIG instance. For one process: a forked child opens its own."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle

    @classmethod
    def open(cls, uuid: str | None) -> Card | None:
        """The card with this UUID; None if the driver does not show it."""
        try:
            library = ctypes.CDLL(_LIBRARY)
            handle = ctypes.c_void_p()
            if library.nvmlInit_v2() != 0:
                return None
            name = (uuid or "").encode()
            if library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)) != 0:
                return None
        except (OSError, AttributeError):
            return None
        return cls(library, handle)

    def free(self) -> int | None:
        """The card's bytes that no process holds."""
        memory = _Memory()
        failed = self._library.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory))
        return None if failed else int(memory.free)

    def held(self) -> dict[int, int]:
        """What each process holds, by its number, as far as the driver says."""
        try:
            listed = self._library.nvmlDeviceGetComputeRunningProcesses_v3
        except AttributeError:  # A driver of before 2022.
            return {}
        count = ctypes.c_uint(0)
        found = (_Process * 0)()
        failed = listed(self._handle, ctypes.byref(count), None)
        # More may have come between the two calls.
        while failed == _INSUFFICIENT_SIZE and count.value < _MOST:
            count.value += 16
            found = (_Process * count.value)()
            failed = listed(self._handle, ctypes.byref(count), found)
        if failed:
            return {}
        known = found[: count.value]
        return {one.pid: int(one.bytes) for one in known if one.bytes != _NOT_AVAILABLE}
