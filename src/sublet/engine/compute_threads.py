"""Which threads compute a model's operations: those of all processors, or the one that calls.

TensorFlow has one pool of threads for a process, and splits operations over it that take some ten
microseconds. A small model then spends more on waking threads than it computes: one row of an MLP
(784-512-512-10) takes 203 µs and 289 µs of processor on two processors, but 93 and 92 in one
thread. Where each processor has a batch to run, small models gain nothing from each other's
processors. So each of them gets a pool of its own, with one thread, which TensorFlow never wakes.

Owns how a session gets such a pool: TensorFlow has a switch for that, which counts for whatever
creates devices while it is set. So all that an engine does to create devices happens here, under
one lock. Who is small is measured when it is loaded (`savedmodel_loading.py`).
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from sublet.inside import current_lease

QUICK = 0.0005
"""Seconds of processor for one row up to which a model is small."""
_GLOBAL = "_ZN10tensorflow11LocalDevice22use_global_threadpool_E"
"""Whether the devices of a new session use the pool of the process. TensorFlow reads it from the
environment, too (TF_OVERRIDE_GLOBAL_THREADPOOL), but then for all sessions: each large model would
have as many threads as there are processors, and models that run side by side would crowd them."""
_LOOPS = frozenset(("Enter", "RefEnter", "StatelessWhile", "While"))
_TRIES = 3

_switch: Any = None
_creating_devices = threading.Lock()


def begin(batches: int) -> bool:
    """Whether small models are to have one thread each, if so many batches may run at a time.
    Not on a GPU, nor where there are more processors than batches: there a large request for a
    small model would leave processors idle. Nor if this TensorFlow lacks the switch."""
    global _switch
    held = current_lease.current()
    on_gpu = held is not None and held.on_gpu
    _switch = None if on_gpu or batches < len(os.sched_getaffinity(0)) else _find()
    return _switch is not None


def can_be_one() -> bool:
    """Whether a session can have one thread."""
    return _switch is not None


def session(graph: Any, one: bool) -> Any:
    """A session on this graph, that has one thread or those of the process."""
    from tensorflow.compat.v1 import ConfigProto, Session

    with _creating_devices:
        if not one:
            return Session(graph=graph)
        _switch.value = False
        try:
            return Session(graph=graph, config=ConfigProto(intra_op_parallelism_threads=1))
        finally:
            _switch.value = True


def start_eager() -> None:
    """Create the devices of eager execution, unless they are there. Whoever loads what runs
    eagerly calls this first: else they might be created while the switch is set for another
    model."""
    if _switch is None:
        return
    import tensorflow as tf

    with _creating_devices:
        tf.config.list_logical_devices()


def quick(call: Callable[[], object]) -> bool:
    """Whether a call is short on one thread. The first does not count: it has things to prepare. Of
    the others one is enough: on a busy machine a short call may take long, but no long one is
    short."""
    call()
    for _ in range(_TRIES):
        began = time.thread_time()
        call()
        if time.thread_time() - began <= QUICK:
            return True
    return False


def loops(operations: Iterable[str]) -> bool:
    """Whether there is one that may run for ever, if its input is not what it was made for."""
    return not _LOOPS.isdisjoint(operations)


def _find() -> Any:
    import tensorflow as tf

    try:
        (name,) = [flag[3:] for flag in tf.sysconfig.get_link_flags() if flag.startswith("-l:")]
        library = ctypes.CDLL(os.path.join(tf.sysconfig.get_lib(), name))
        return ctypes.c_bool.in_dll(library, _GLOBAL)
    except (OSError, ValueError):
        return None
