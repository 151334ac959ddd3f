"""Memory that two processes share: memfds, sealed so that they cannot shrink.

A sender keeps its segments and uses them again; the other end maps each once. Nothing has a name
that could be guessed or left behind: the memory goes with the last process that has it.
"""

import contextlib
import ctypes
import fcntl
import mmap
import os
import weakref
from typing import Any

import numpy as np

from .records import Malformed
from .tensors import ALIGNED, Array

_SHRINK = 0x0002
"""F_SEAL_SHRINK: a mapping of it can never lose its pages, so reading it never ends in SIGBUS."""
_ADD_SEALS, _GET_SEALS = 1033, 1034
_SMALLEST = 256 << 10
_MOST_IDLE = 256 << 20  # Bytes that a sender keeps for later.


def create(size: int) -> int:
    """Make a sealed memfd of this size."""
    memory = os.memfd_create("sublet", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(memory, size)
        fcntl.fcntl(memory, _ADD_SEALS, _SHRINK)
    except BaseException:
        os.close(memory)
        raise
    return memory


def attach(memory: int, size: int, write: bool = False) -> memoryview:
    """Map what the other end has sent; the descriptor stays the caller's. Raises Malformed."""
    try:
        sealed = fcntl.fcntl(memory, _GET_SEALS) & _SHRINK
    except OSError:
        raise Malformed("shared memory must be a memfd") from None
    if not sealed or not size or os.fstat(memory).st_size < size:
        raise Malformed("shared memory is not sealed, or smaller than was said")
    try:
        return mapped(memory, size, write)
    except OSError as error:
        raise Malformed(f"shared memory cannot be mapped: {error.strerror}") from None


class Segment:
    """One piece of the sender's memory. `shared` is set once the other end knows it."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.shared = False
        self.descriptor = create(size)
        self.memory = mapped(self.descriptor, size, write=True)
        self.address = np.frombuffer(self.memory, np.uint8, 1).ctypes.data

    @property
    def nbytes(self) -> int:
        return self.size

    def hand_over(self) -> int:
        """Its descriptor, to be sent and closed; the mapping stays."""
        self.shared = True
        memory, self.descriptor = self.descriptor, -1
        return memory

    def __del__(self) -> None:
        if getattr(self, "descriptor", -1) >= 0:
            with contextlib.suppress(OSError):
                os.close(self.descriptor)


class Segments:
    """All segments of one sender: those that are in use, and those that wait for the next."""

    def __init__(self) -> None:
        self.dropped: list[int] = []
        """Numbers of segments that the other end can let go of, and does not know yet."""
        self._idle: dict[int, list[Segment]] = {}
        self._idle_bytes = 0
        self._last = 0
        self._lent: dict[int, Segment] = {}
        """By their address: in the hands of the user, as arrays."""

    @property
    def lent(self) -> int:
        """How many segments users hold as arrays."""
        return len(self._lent)

    def take(self, nbytes: int) -> Segment:
        """A free segment of at least this size."""
        size = max(_SMALLEST, 1 << (nbytes - 1).bit_length())
        idle = self._idle.get(size)
        if idle:
            self._idle_bytes -= size
            return idle.pop()
        self._last += 1
        return Segment(self._last, size)

    def put_back(self, segment: Segment) -> None:
        """It is not in use any more. It is kept if the other end has it: else it has a
        descriptor, of which there are few."""
        if not segment.shared:
            return
        if self._idle_bytes + segment.size > _MOST_IDLE:
            self.dropped.append(segment.number)
            return
        self._idle_bytes += segment.size
        self._idle.setdefault(segment.size, []).append(segment)

    def lend(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array in a segment of its own, that is sent without a copy; given back with it."""
        count = int(np.prod(shape, dtype=np.int64))
        segment = self.take(max(1, count * dtype.itemsize))
        base = np.frombuffer(segment.memory, dtype, count)
        self._lent[segment.address] = segment
        weakref.finalize(base, self._take_back, segment).atexit = False
        return base.reshape(shape)

    def find_lent(self, array: Array) -> tuple[Segment, int] | None:
        """The segment that this array lies in, and where; None for most arrays."""
        if not self._lent:
            return None
        address = array.ctypes.data
        if segment := self._lent.get(address):
            return segment, 0
        for start, segment in self._lent.items():
            offset = address - start
            if 0 < offset < segment.size and not offset % ALIGNED:
                return segment, offset
        return None

    def _take_back(self, segment: Segment) -> None:
        del self._lent[segment.address]
        self.put_back(segment)


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
    """The bytes of a memfd, whose descriptor is not needed any more. Raises OSError. They stay
    mapped as long as this view, or any other view or array of them, lives."""
    # Not as an array: arrays of a part of it would refer to the whole, and not to each other. The
    # checker does not know that an array is a buffer.
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
