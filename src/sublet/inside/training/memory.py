"""What a step may take of the lease, and what it takes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from .. import allocator, measure

_UINT8 = 4
_PIECES = 8
"""What is reserved at once: in one piece, a pool could not use what it has already."""


def limit() -> int | None:
    """The most bytes that TensorFlow may have in use in this process now; None without a lease."""
    usage = measure.writer()
    if usage is None or not usage.reading.runtime_started_ns:
        return None
    usage.follow_ceiling()
    return usage.reading.limit or None


def in_use() -> int:
    """Bytes that TensorFlow has in use now; 0 if unknown."""
    usage = measure.writer()
    used = None if usage is None else allocator.usage(usage.lease)
    return 0 if used is None else used[0]


def peak() -> int:
    """The most bytes that TensorFlow has had in use since `taken_by` was called last; 0 if
    unknown."""
    usage = measure.writer()
    used = None if usage is None else allocator.usage(usage.lease)
    return 0 if used is None else used[1]


def taken_by(act: Callable[[], object]) -> int:
    """The most bytes that were in use during `act`, beyond those before it."""
    usage = measure.writer()
    if usage is None:
        act()
        return 0
    usage.note_usage()  # The peak so far is kept, as it is measured anew.
    allocator.forget_peak(usage.lease)
    before = in_use()
    try:
        act()
    finally:
        usage.note_usage()
    used = allocator.usage(usage.lease)
    return 0 if used is None else max(0, used[1] - before)


def can_grow() -> bool:
    """Whether the lease may get more while the program runs."""
    usage = measure.writer()
    return usage is not None and usage.lease.elastic


def reserve(size: int) -> bool:
    """Have the pool get so many bytes now, from the device if it has room for a lease that grows;
    whether it could. Nothing fails if not."""
    usage = measure.writer()
    try:
        library = allocator.framework_library()
        data = library.TF_TensorData
        data.restype, data.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    except (AttributeError, ImportError, OSError, ValueError):
        return False
    piece = -(-size // _PIECES)
    held: list[int] = []
    while len(held) < _PIECES and (not held or data(held[-1])):
        held.append(library.TF_AllocateTensor(_UINT8, (ctypes.c_int64 * 1)(piece), 1, piece))
    found = bool(data(held[-1]))
    for tensor in held:
        library.TF_DeleteTensor(tensor)
    if usage is not None:
        allocator.forget_peak(usage.lease)  # Nothing has used it yet.
    return found
