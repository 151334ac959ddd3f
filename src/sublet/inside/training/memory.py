"""What a step may take of the lease, and what it takes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from .. import allocator, measure


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
    try:
        library = allocator.framework_library()
        library.TF_TensorData.restype = ctypes.c_void_p
        library.TF_TensorData.argtypes = [ctypes.c_void_p]
        tensor = library.TF_AllocateTensor(4, (ctypes.c_int64 * 1)(size), 1, size)
        found = bool(library.TF_TensorData(tensor))
        library.TF_DeleteTensor(tensor)
    except (AttributeError, ImportError, OSError, ValueError):
        return False
    return found
