"""Holds a running process, a notebook or a script, to a lease that it has taken itself; and back.

Possible until TensorFlow's runtime starts: the library may be loaded, but its devices and
allocators must not exist. Asking the broker for the lease is the caller's part.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
from collections.abc import Iterable
from typing import Any

from ..formats.lease import LeaseTerms
from ..formats.lease_environment import leased_environment
from . import current_lease, hook, measure

_THREADS = ("tf_Compute", "tf_graph_runner")
"""Names of threads of TensorFlow's runtime; before 2.21 they had none."""

_before: dict[str, str] | None = None
_mask: set[int] = set()
"""Environment and processors of this process before the lease."""
_watching = False
_failed = False


def too_late() -> str:
    """Why it is too late to hold TensorFlow in this process to a lease; empty if it is not."""
    if "tensorflow" not in sys.modules:
        return ""
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    if getattr(context, "_initialized", False) or _has_had_session() or _has_runtime_threads():
        return "TensorFlow's runtime has started in this process"
    # Looking for GPUs starts the driver, which reads only once which of them are visible.
    devices = getattr(context, "_physical_devices", None) or ()
    if any(device.device_type == "GPU" for device in devices):
        return "TensorFlow has looked for the GPUs in this process"
    return ""


def take(lease: LeaseTerms, cpus: Iterable[int] = ()) -> None:
    """Hold this process and its future children to the lease."""
    global _before, _mask
    _before, _mask = dict(os.environ), os.sched_getaffinity(0)
    current_lease.impose(lease)
    if cpus := set(cpus):
        _pin(cpus)
    hook.install()
    _watch_end()


def leave(lease: LeaseTerms) -> None:
    """Undo `take`, before the runtime has started. What the program has set since then stays."""
    global _before
    if _before is None:
        return
    imposed, _ = leased_environment(lease, _before)
    for name in imposed.keys() | _before.keys():
        before = _before.get(name)
        if before == imposed.get(name) or os.environ.get(name) != imposed.get(name):
            continue
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
    if os.sched_getaffinity(0) != _mask:
        _pin(_mask)
    _before = None
    current_lease.forget()


def _pin(cpus: set[int]) -> None:
    """Set the processors of all threads; new threads inherit them."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(thread), cpus)


def _has_had_session() -> bool:
    """Whether TensorFlow has counted a session of this process."""
    module = sys.modules.get("tensorflow.python.client.session")
    try:
        # Without the module, or the counter in it, this is an AttributeError.
        return bool(module._python_session_create_counter.get_cell().value())  # type: ignore[union-attr]
    except AttributeError:
        return False


def _has_runtime_threads() -> bool:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/comm") as file:
            if file.read().strip() in _THREADS:
                return True
    return False


def _watch_end() -> None:
    """Note how this process ends: nobody else can."""
    global _watching
    if _watching:
        return
    _watching = True
    ended = sys.excepthook

    @functools.wraps(ended)
    def excepthook(kind: Any, error: Any, traceback: Any) -> None:
        global _failed
        _failed = True
        ended(kind, error, traceback)

    sys.excepthook = excepthook
    atexit.register(_note_end)


def _note_end() -> None:
    usage = measure.writer()
    if usage is not None:
        usage.note(exit_code=int(_failed))
