"""Settings of native libraries that were loaded before the program's first line.

A fresh interpreter loads them when the program imports their package, with the environment that the
program has by then. A forked one has loaded them long before, so their settings are changed later.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
from collections.abc import Iterable, Mapping

from ...formats import fence_library
from ...formats.lease import LeaseTerms
from ..current_lease import say

_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
_THREAD_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)
_ABSEIL_RELEASES = (
    "20250814",
    "20250512",
    "20250127",
    "20240722",
    "20240116",
    "20230802",
    "20230125",
    "20220623",
)
"""TensorFlow logs through Abseil, whose release is part of the names of its functions."""


def restore_blas_threads(paths: Iterable[str], environ: Mapping[str, str]) -> None:
    """Give these OpenBLAS libraries the threads that the environment and the affinity allow.

    The nursery imports NumPy with a single-threaded OpenBLAS, so that forking is safe.
    """
    count = len(os.sched_getaffinity(0))
    for name in _THREAD_VARIABLES:
        if environ.get(name, "").isdigit() and int(environ[name]) > 0:
            count = min(count, int(environ[name]))
            break
    if count == 1:
        return
    for path in paths:
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(path)
            for name in _THREAD_SETTERS:
                setter = getattr(library, name, None)
                if setter is not None:
                    setter(ctypes.c_int(count))
                    break


def openblas_libraries() -> list[str]:
    """The OpenBLAS libraries mapped into this process."""
    return [path for path in _mapped("openblas") if ".so" in path]


def load_fence(lease: LeaseTerms) -> None:
    """Load the fence of the lease, if it has one. Whoever opens `libcuda.so.1` in this process from
    now on gets it, because it has that name; fresh processes find it by the path."""
    if not lease.fence:
        return
    if already := _mapped("/libcuda.so"):
        say(f"the fence is not used: {already[0]} is loaded already")
        return
    try:
        ctypes.CDLL(os.path.join(lease.fence, fence_library.LIBRARY))
    except OSError as error:
        say(f"the fence is not used: {error}")


def _mapped(part: str) -> list[str]:
    """The files mapped into this process whose path has this in it."""
    found: dict[str, None] = {}
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            _, slash, path = line.rstrip("\n").partition("/")
            if slash and part in f"/{path}":
                found[f"/{path}"] = None
    return list(found)


def set_log_level(environ: Mapping[str, str]) -> None:
    """Set the least level of TensorFlow's C++ log to TF_CPP_MIN_LOG_LEVEL, if possible."""
    level = environ.get("TF_CPP_MIN_LOG_LEVEL", "")
    if not (level.isascii() and level.isdigit()):
        return
    with contextlib.suppress(Exception):
        from tensorflow.python.platform import sysconfig

        (path,) = glob.glob(os.path.join(sysconfig.get_lib(), "libtensorflow_framework.so*"))
        library = ctypes.CDLL(path)
        for release in _ABSEIL_RELEASES:
            name = f"_ZN4absl12lts_{release}14SetMinLogLevelENS0_18LogSeverityAtLeastE"
            switch = getattr(library, name, None)
            if switch is not None:
                switch(ctypes.c_int(int(level)))
                return
