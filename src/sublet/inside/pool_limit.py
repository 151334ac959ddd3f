"""The limit of TensorFlow's memory pool, which can be moved while the pool is in use.

TensorFlow fixes the limit when the pool is made, and has no function to change it. So the number is
looked for in the allocator itself, and believed only if what stands around it is what TensorFlow
says of the pool: limit, bytes in use, and peak. If anything differs, as it may in another version,
there is no `PoolLimit`, and the lease stays as large as it is.

Raising must also work while a thread waits for memory and holds Python's lock, as it does in
`tf.constant(array)`: then no Python code runs in this process, and ten seconds later the program
fails or crashes. So another process writes the new limit to a pipe, and the C library does the
rest in a thread of its own (POSIX asynchronous I/O): it reads from the pipe into the limit itself,
and then frees one small tensor, by which TensorFlow wakes the threads that wait for memory.

    broker ──8 bytes──▶ FIFO ──aio_read──▶ the limit; a tensor freed ──▶ waiting threads try again

Each FIFO is read once. Nothing reads from a descriptor that the program could have closed and
opened again in the meantime.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import struct
import termios
from typing import Any

from ..formats import attempt_files
from ..formats.lease import MIB, LeaseTerms
from . import allocator
from .allocator import c_library, framework_library

SHOTS = 3
"""So many raises can come while Python's lock is held."""
MORE_SHOTS = 6
"""So many where there are other processes: then each raise is small, as others need the rest."""
_HIGH = 40
"""Below 64: for larger numbers the kernel has a process with threads wait for 20 ms, once."""
_WORDS = 320
_FIRST = 16
"""The limit is among so many words at the beginning of the allocator; its statistics come later."""
_NEAR = 36
"""The size of the next region is among so many words before the statistics."""
_GARBAGE_COLLECTION = 2
"""Among the options of the allocator, which are bytes: may grow, tries again, collects garbage."""
_BELLS = 32
_UINT8 = 4
_SIGEV_THREAD = 2
_GET_GPU_ALLOCATOR = (
    "_ZN10tensorflow15GPUProcessState15GetGPUAllocatorERKNS_10GPUOptionsEN3tsl3gtl7IntTypeINS4_15"
    "TfDeviceId_tag_EiEEmRKSt6vectorIS8_SaIS8_EE"
)


class _AioControl(ctypes.Structure):
    """`struct aiocb` of glibc, on 64-bit machines."""

    _fields_ = [
        ("descriptor", ctypes.c_int),
        ("operation", ctypes.c_int),
        ("priority", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("argument", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("rest", ctypes.c_char * 160),
    ]


class _Shot:
    """One FIFO, and the read from it that is under way."""

    def __init__(self, directory: str, number: int, address: int, bell: int, ring: int) -> None:
        self.path = attempt_files.raise_fifo(directory, os.getpid(), number)
        os.mkfifo(self.path, 0o600)
        # Both ends, so that it neither waits for a writer nor ever comes to an end.
        low = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._fd = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, high())
        finally:
            os.close(low)
        self._file = _identity(self._fd)
        self._libc = ctypes.CDLL(None)
        self._control = _AioControl(
            descriptor=self._fd,
            buffer=address,
            length=8,
            argument=bell,
            notify=_SIGEV_THREAD,
            function=ring,
        )
        if self._libc.aio_read(ctypes.byref(self._control)) != 0:
            self.close()
            raise OSError(errno.EAGAIN, "aio_read")

    @property
    def used(self) -> bool:
        error: int = self._libc.aio_error(ctypes.byref(self._control))
        return error != errno.EINPROGRESS

    @property
    def in_flight(self) -> bool:
        """Whether a limit was sent that has not been read. Once the pipe is empty, the limit is
        set: the kernel has copied it there."""
        try:
            # Opened anew, as the program may have closed ours.
            pipe = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            unread = fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4)
            return any(unread)
        finally:
            os.close(pipe)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        with contextlib.suppress(OSError):
            if _identity(self._fd) == self._file:
                os.close(self._fd)


class Bells:
    """Small tensors, each to be freed once: that wakes those who wait for memory of the device."""

    def __init__(self) -> None:
        self._made: list[int] = []
        delete = self._delete()
        self.free = ctypes.cast(delete, ctypes.c_void_p).value or 0
        """The address of the function that frees one; others call it in threads of their own."""

    def keep(self, least: int) -> None:
        """Make some, unless there are enough. There must be room for them."""
        if len(self._made) < least:
            made = (self._make() for _ in range(_BELLS))
            self._made += [bell for bell in made if bell]

    def take(self) -> int | None:
        """One of them, to be freed by somebody else."""
        return self._made.pop() if self._made else None

    def ring(self) -> None:
        """Free one bell, which wakes allocations that wait."""
        if (bell := self.take()) is not None:
            self._delete()(bell)

    def _make(self) -> int | None:
        made: int | None = framework_library().TF_AllocateTensor(
            _UINT8, (ctypes.c_int64 * 1)(1), 1, 1
        )
        return made

    def _delete(self) -> Any:
        return framework_library().TF_DeleteTensor


class GpuBells(Bells):
    """The same on the first GPU: tensors of eager execution."""

    def __init__(self, handle: Any) -> None:
        super().__init__()
        pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
        pointer_of.restype, pointer_of.argtypes = (
            ctypes.c_void_p,
            [ctypes.py_object, ctypes.c_char_p],
        )
        self._context = pointer_of(handle, None)

    def _make(self) -> int | None:
        library, framework = c_library(), framework_library()
        framework.TF_NewStatus.restype = ctypes.c_void_p
        library.TFE_NewTensorHandle.restype = ctypes.c_void_p
        library.TFE_NewTensorHandle.argtypes = [ctypes.c_void_p] * 2
        copy = library.TFE_TensorHandleCopyToDevice
        copy.restype = ctypes.c_void_p
        copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        framework.TF_DeleteStatus.argtypes = [ctypes.c_void_p]
        status = framework.TF_NewStatus()
        tensor = super()._make()
        here = library.TFE_NewTensorHandle(tensor, status) if tensor else None
        there: int | None = copy(here, self._context, b"GPU:0", status) if here else None
        if here:
            self._delete()(here)
        if tensor:
            framework.TF_DeleteTensor(tensor)
        framework.TF_DeleteStatus(status)
        return there

    def _delete(self) -> Any:
        delete = c_library().TFE_DeleteTensorHandle
        delete.argtypes = [ctypes.c_void_p]
        return delete


class PoolLimit:
    """The limit of this process's pool on the leased device. For one thread; what comes through the
    FIFOs comes from others."""

    def __init__(
        self, bells: Bells, address: int, limit_at: int, statistics_at: int, region_at: int | None
    ) -> None:
        self._limit = ctypes.c_uint64.from_address(address + 8 * limit_at)
        self._in_use = ctypes.c_int64.from_address(address + 8 * statistics_at)
        self._shown = ctypes.c_int64.from_address(address + 8 * (statistics_at + 3))
        self._pool = ctypes.c_int64.from_address(address + 8 * (statistics_at + 10))
        self._region = (
            None if region_at is None else ctypes.c_uint64.from_address(address + 8 * region_at)
        )
        self._bells = bells
        self._shots: list[_Shot] = []
        self._count = 0

    @classmethod
    def find(cls, lease: LeaseTerms, limit: int, region: int = 0) -> PoolLimit | None:
        """The limit of the pool that was started with so many bytes; None if it is not where it is
        expected. Call it while no other thread allocates. `region` is the size of the region that
        the pool has taken, if there is one and its size is known."""
        try:
            handle, devices = allocator.handle_and_devices(lease)
            known = allocator.usage(lease)
            if known is None or len(devices) != 1:
                # TensorFlow ends a process that asks for the allocator of a GPU which is not there.
                # Where there are several, each has a pool of its own.
                return None
            address = _gpu_allocator() if lease.on_gpu else allocator.cpu_pool()
            words = _read(address)
        except (AttributeError, ImportError, OSError, ValueError, struct.error):
            return None
        limits = [at for at in range(_FIRST) if words[at] == limit]
        statistics = [
            at for at in range(_FIRST, len(words) - 12) if _are_statistics(words, at, limit, known)
        ]
        if len(limits) != 1 or len(statistics) != 1:
            return None
        # It stays as it is if it had to be doubled for that region, else it is doubled afterwards.
        near = range(statistics[0] - _NEAR, statistics[0])
        regions = [at for at in near if region and words[at] in (region, 2 * region)]
        bells = GpuBells(handle) if lease.on_gpu else Bells()
        region_at = regions[0] if len(regions) == 1 else None
        if not lease.on_gpu:  # There it is the user's to switch off.
            _collect_garbage(address, words, near)
        return cls(bells, address, limits[0], statistics[0], region_at)

    @property
    def limit(self) -> int:
        return int(self._limit.value)

    @property
    def pool(self) -> int:
        """What the pool has taken of the limit. It gives back regions in which nothing is, when an
        allocation would fail without; and nothing else."""
        return int(self._pool.value)

    @property
    def takes_regions(self) -> bool:
        """Whether `take_regions_of` has an effect."""
        return self._region is not None

    def take_regions_of(self, size: int) -> None:
        """Have the pool take its next region of at least this size, as far as its limit allows,
        when it needs one."""
        if self._region is not None:
            self._region.value = 1 << max(size - 1, MIB).bit_length()

    @property
    def in_flight(self) -> bool:
        """Whether a raise was sent that has not changed the limit yet."""
        return any(shot.in_flight for shot in self._shots)

    def arm(self, directory: str, shots: int = SHOTS) -> None:
        """Offer FIFOs in this directory through which other processes can raise the limit."""
        if self.limit - self._in_use.value > MIB:
            self._bells.keep(shots)
        while len(self._shots) < shots and (bell := self._bells.take()):
            address = ctypes.addressof(self._limit)
            self._shots.append(_Shot(directory, self._count, address, bell, self._bells.free))
            self._count += 1

    def take_raises(self) -> int:
        """How often the limit was raised through a FIFO since this was last asked; what was used is
        put away, and its file removed."""
        used = [shot for shot in self._shots if shot.used]
        self._shots = [shot for shot in self._shots if shot not in used]
        for shot in used:
            shot.close()
        self._shown.value = self.limit
        return len(used)

    def ring(self) -> None:
        """Have the threads that wait for memory try again."""
        self._bells.ring()

    def move(self, limit: int) -> int:
        """Set the limit, but not below what the pool has taken; returns what it is now."""
        self._limit.value = max(limit, _whole(self.pool))
        # A limit below the pool would be none at all, so look again: the pool may just have grown.
        if self.pool > self.limit:
            self._limit.value = _whole(self.pool)
        self._shown.value = self.limit
        return self.limit


def high() -> int:
    """The least number of our descriptors: above those that programs get, which may expect the
    lowest free one."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _HIGH if soft == resource.RLIM_INFINITY else min(_HIGH, soft // 2)


def _whole(amount: int) -> int:
    return -(-amount // MIB) * MIB


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _collect_garbage(address: int, words: tuple[int, ...], near: range) -> None:
    """Have the pool give back regions in which nothing is, and take one that is large enough,
    before an allocation fails. So it is on a GPU; on the CPU TensorFlow has no setting for it, and
    a program whose tensors become larger and larger fails with half of its limit in use."""
    # Two words of options, the second a fraction that is 0; then the size of the next region.
    found = [
        at
        for at in near
        if words[at] & 0xFFFFFF == 0x000101
        and words[at + 1] == 0
        and words[at + 2].bit_count() == 1
        and words[at + 2] >= MIB
    ]
    if len(found) == 1:
        where = address + 8 * found[0] + _GARBAGE_COLLECTION
        ctypes.c_uint8.from_address(where).value = 1


def _gpu_allocator() -> int:
    """The address of the first GPU's pool: TensorFlow gives what it has made with the device."""
    library = framework_library()
    singleton = library._ZN10tensorflow15GPUProcessState9singletonEPS0_
    singleton.restype, singleton.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    allocator_of = getattr(library, _GET_GPU_ALLOCATOR)
    allocator_of.restype = ctypes.c_void_p
    allocator_of.argtypes = [*[ctypes.c_void_p] * 2, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p]
    options = ctypes.c_char.in_dll(library, "_ZN10tensorflow29_GPUOptions_default_instance_E")
    no_peers = (ctypes.c_size_t * 3)()
    address: int | None = allocator_of(
        singleton(None), ctypes.addressof(options), 0, 0, ctypes.addressof(no_peers)
    )
    if not address:
        raise ValueError("there is no GPU allocator")
    return address


def _read(address: int) -> tuple[int, ...]:
    """The words at an address, through the kernel: what is not mapped is an error and no crash."""
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        data = os.pread(memory.fileno(), 8 * _WORDS, address)
    return struct.unpack(f"<{len(data) // 8}Q", data[: len(data) // 8 * 8])


def _are_statistics(words: tuple[int, ...], at: int, limit: int, known: tuple[int, int]) -> bool:
    """Whether TensorFlow's `AllocatorStats` stand here, one word after their beginning: in use,
    peak, largest, limit and that it is known; seven words later what the pool has taken."""
    current, peak, _, shown, is_known = words[at : at + 5]
    pool, pool_is_known = words[at + 10 : at + 12]
    return (
        (current, peak) == known
        and shown == limit
        and is_known & 0xFF == 1
        and pool_is_known & 0xFF == 1
        and current <= pool <= limit
        and pool % 256 == 0
    )
