"""The memory pool of the leased device: primes it, and reads what is in use.

Never raises into the program: a pool that is not primed only fragments sooner.

Why priming: the CPU's BFC allocator takes memory in regions of 2, 4, 8 … MiB that are never merged,
so a program can fail to get half of its ceiling while next to nothing is in use. With one region,
an MLP and an LSTM that needed 1.2 and 1.3 times their peak ran with 1.0 times of it.

Why two regions: a tensor gets the whole of a free chunk unless that is twice its size or 128 MiB
larger. In one region of 160 MiB a tensor of 100 MiB has it all, and the next operation fails, often
by a segmentation fault. So a small region, which the allocator uses for small tensors, comes first.
A pool that is 128 MiB larger than needed wastes nothing: every chunk is cut to size, and the
measured peak is the need. (attention.py showed 238 to 272 MiB in regions that double, 164 to 218 in
one.)

The pages of a region stay untouched but for a table of 1/32 of its size: 256 MiB cost 4 ms and 8
MiB, 8 GiB would cost half a second and 256 MiB. So a larger pool gets the small region only, and
grows from there; the rest can still be had in one piece.

The second region is not taken at the start, but when the small one does not do (`pool_limit`), as a
pool gives nothing back: what it has not taken can go to other processes of the program. Where the
size of the next region is not found, the second is primed as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import glob
import os
import threading
from typing import Any

from ..formats.lease import MIB, LeaseTerms
from ..formats.lease_environment import cpu_limit
from .config import leased_cards

WHOLE = 1024
"""MiB up to which any pool is primed whole."""
WHOLE_ROOMY = 4096
"""MiB up to which a roomy one is, which is known to be used."""
_PART = 16
"""The small region is at most this fraction of the pool; regions are powers of two."""
_LARGEST_SMALL = 256

_UINT8 = 4
_SPARE = 2
"""MiB left out of the request, as the runtime has taken a little. The allocator rounds the region
up to what is left, so nothing is lost."""


def prime(lease: LeaseTerms, context: Any = None) -> int:
    """Have the pool take its small region, and return the size of that in bytes; 0 if it has none.

    A program that only has sessions has no eager `context`; one of our own is used then.
    """
    small = _small_mib(lease)
    if not small:
        return 0
    try:
        from tensorflow.python import pywrap_tfe

        handle = _own_handle() if context is None else context._handle
        # With anything in use it might not fit, and TensorFlow would retry for 10 s.
        if int(pywrap_tfe.TFE_GetMemoryInfo(handle, "CPU:0")["peak"]) > MIB:
            return 0
        _allocate_once(small - 1)
        pywrap_tfe.TFE_ResetMemoryStats(handle, "CPU:0")
    except Exception:
        return 0
    return small * MIB


def prime_rest(lease: LeaseTerms) -> None:
    """Have the pool take all that its small region has left, in one piece."""
    small, ceiling = _small_mib(lease), cpu_limit(os.environ) or 0
    # The runtime's first region has 2 MiB.
    if (rest := ceiling - small - 2 - _SPARE) > small > 0:
        with contextlib.suppress(Exception):
            _allocate_once(rest)


def is_one_piece(lease: LeaseTerms) -> bool:
    """Whether the pool is to take all but its small region in one piece."""
    most = WHOLE_ROOMY if lease.roomy else WHOLE
    return _small_mib(lease) > 0 and (cpu_limit(os.environ) or 0) <= most


def _allocate_once(size: int) -> None:
    """Allocate this many MiB and free them, so that the pool keeps the region."""
    library = framework_library()
    tensor = library.TF_AllocateTensor(_UINT8, (ctypes.c_int64 * 1)(size * MIB), 1, size * MIB)
    library.TF_DeleteTensor(tensor)


def make_pool() -> None:
    """Have TensorFlow make the CPU's pool now, with the limit that is in the environment."""
    with contextlib.suppress(AttributeError, ImportError, OSError, ValueError):
        cpu_pool()


def cpu_pool() -> int:
    """The address of the CPU's pool, which is made if there is none. Raises AttributeError if
    TensorFlow does not export the functions that tell it."""
    library = framework_library()
    singleton = library._ZN10tensorflow12ProcessState9singletonEv
    allocator_of = library._ZN10tensorflow12ProcessState15GetCPUAllocatorEi
    singleton.restype = allocator_of.restype = ctypes.c_void_p
    allocator_of.argtypes = [ctypes.c_void_p, ctypes.c_int]
    address: int | None = allocator_of(singleton(), 0)
    if not address:
        raise ValueError("there is no CPU allocator")
    return address


def c_library() -> Any:
    """The library with TensorFlow's C interface for eager execution."""
    return _library("cc")


@functools.cache
def framework_library() -> Any:
    """The library with TensorFlow's allocators. In TensorFlow 2.16 the other one has copies of
    these functions, with allocators that nothing uses."""
    library = _library("framework")
    library.TF_AllocateTensor.restype = ctypes.c_void_p
    library.TF_AllocateTensor.argtypes = [
        ctypes.c_int,
        ctypes.POINTER(ctypes.c_int64),
        ctypes.c_int,
        ctypes.c_size_t,
    ]
    library.TF_DeleteTensor.argtypes = [ctypes.c_void_p]
    return library


@functools.cache
def _library(name: str) -> Any:
    from tensorflow.python.platform import sysconfig

    (path,) = glob.glob(os.path.join(sysconfig.get_lib(), f"libtensorflow_{name}.so*"))
    return ctypes.CDLL(path)


def usage(lease: LeaseTerms) -> tuple[int, int] | None:
    """Bytes in use on the leased device now, and the peak so far; None if unknown. Of several
    devices, each is the most of any."""
    cards = card_usage(lease)
    return (max(one[0] for one in cards), max(one[1] for one in cards)) if cards else None


def card_usage(lease: LeaseTerms) -> list[tuple[int, int]]:
    """The same for each device of the lease; empty if unknown."""
    try:
        from tensorflow.python import pywrap_tfe

        handle, devices = handle_and_devices(lease)
        cards = _cards_of(lease, len(devices))
        used = [(0, 0)] * len(lease.cards)
        for name, card in zip(devices, cards, strict=True):
            found, known = pywrap_tfe.TFE_GetMemoryInfo(handle, name), used[card]
            used[card] = known[0] + int(found["current"]), known[1] + int(found["peak"])
        return used
    except Exception:
        return []


def forget_peak(lease: LeaseTerms) -> None:
    """Reset the peak to what is in use now."""
    with contextlib.suppress(Exception):
        from tensorflow.python import pywrap_tfe

        handle, devices = handle_and_devices(lease)
        for name in devices:
            pywrap_tfe.TFE_ResetMemoryStats(handle, name)


def limit(lease: LeaseTerms, share: int | None = None) -> int:
    """The most bytes that the allocator gives: this process's share, or all of the lease; or less
    if the user has set less."""
    most = lease.ceiling_mib if share is None else share // MIB
    wish = _gpu_limit if lease.on_gpu else cpu_limit(os.environ)
    return min(most, wish or most) * MIB


_gpu_limit = 0


def note_gpu_limit(config: Any) -> None:
    """Remember the limit with which the devices of this process are about to be made, in MiB."""
    global _gpu_limit
    devices = config.gpu_options.experimental.virtual_devices
    _gpu_limit = int(sum(limit for one in devices for limit in one.memory_limit_mb))


def handle_and_devices(lease: LeaseTerms) -> tuple[Any, list[str]]:
    """A C++ context, and the names of the leased devices in it. Raises if there are none."""
    from tensorflow.python.eager import context as eager

    context = eager.context_safe()
    handle = None if context is None else context._context_handle
    if not lease.on_gpu:
        # All logical CPUs share one pool; each logical GPU has its own.
        return _own_handle() if handle is None else handle, ["CPU:0"]
    if handle is None:
        return _session_handle(), [f"GPU:{index}" for index in range(_session_gpus())]
    devices = context._logical_devices or ()
    # In a cluster, those of other tasks come after the own ones.
    own = devices[0].name.rpartition("/")[0] + "/" if devices else ""
    gpus = [one for one in devices if one.device_type == "GPU" and one.name.startswith(own)]
    return handle, [f"GPU:{index}" for index in range(len(gpus))]


def _cards_of(lease: LeaseTerms, count: int) -> list[int]:
    """Which card of the lease each logical device is on."""
    if not lease.more:
        return [0] * count
    from tensorflow.python.eager import context as eager

    context = eager.context_safe()
    if context is None or context._context_handle is None:
        options = _session_config().gpu_options
        cards = leased_cards(options, lease, len(lease.cards))
        parts = [len(one.memory_limit_mb) for one in options.experimental.virtual_devices]
        numbers = [lease.cards.index(card) for card in cards]
    else:
        gpus = [one for one in context._physical_devices if one.device_type == "GPU"]
        numbers = [at for at, one in enumerate(gpus) if one in context._visible_device_list]
        parts = [len(context._virtual_device_map.get(gpus[at]) or "1") for at in numbers]
    return [at for at, several in zip(numbers, parts, strict=True) for _ in range(several)]


def _small_mib(lease: LeaseTerms) -> int:
    """The size of the small region in MiB; 0 if the pool is to have none."""
    ceiling = cpu_limit(os.environ)
    if lease.on_gpu or ceiling is None or ceiling < 4 * _SPARE:
        return 0
    # The largest power of two within its fraction, as the allocator would round it.
    return min(_LARGEST_SMALL, 1 << max(2, (ceiling // _PART).bit_length() - 1))


_own: tuple[int, Any] | None = None


def _own_handle() -> Any:
    """A C++ context of our own for queries. It shares the process's CPU allocator, and does not
    start the program's eager context."""
    global _own
    if _own is None or _own[0] != os.getpid():
        from tensorflow.core.protobuf import config_pb2

        config = config_pb2.ConfigProto(
            device_count={"CPU": 1, "GPU": 0}, inter_op_parallelism_threads=1
        )
        _own = (os.getpid(), _new_context(config))
    return _own[1]


_session: tuple[int, Any] | None = None
_of_session: tuple[int, Any] | None = None
_querying = threading.Lock()


def note_session(config: Any) -> None:
    """Remember the configuration with which the first session has made this process's devices."""
    global _session
    if _session is None or _session[0] != os.getpid():
        _session = (os.getpid(), config)


def _session_handle() -> Any:
    """A C++ context of our own that shares the GPU allocators of the program's sessions, which have
    none that can be asked. Made with their configuration: TensorFlow keeps the devices and limits
    that a process has made first, and refuses others. Raises if there is no session."""
    global _of_session
    with _querying:
        if _of_session is None or _of_session[0] != os.getpid():
            config = _session_config()
            _of_session = (os.getpid(), None)  # What fails once is not tried every second.
            ours = type(config)()
            ours.gpu_options.CopyFrom(config.gpu_options)
            ours.device_count.update(config.device_count)
            ours.inter_op_parallelism_threads = ours.intra_op_parallelism_threads = 1
            _of_session = (os.getpid(), _new_context(ours))
        if _of_session[1] is None:
            raise ValueError("the devices of the sessions cannot be asked")
        return _of_session[1]


def _session_gpus() -> int:
    config = _session_config()
    if config.device_count.get("GPU", 1) == 0:
        return 0
    return sum(len(one.memory_limit_mb) for one in config.gpu_options.experimental.virtual_devices)


def _session_config() -> Any:
    if _session is None or _session[0] != os.getpid():
        raise ValueError("the runtime has not started")
    return _session[1]


def _new_context(config: Any) -> Any:
    from tensorflow.python import pywrap_tfe

    options = pywrap_tfe.TFE_NewContextOptions()
    try:
        pywrap_tfe.TFE_ContextOptionsSetConfig(options, config.SerializeToString())
        return pywrap_tfe.TFE_NewContext(options)
    finally:
        pywrap_tfe.TFE_DeleteContextOptions(options)
