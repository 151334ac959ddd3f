"""NumPy's own thread pool.

The nursery imports NumPy with a single-threaded OpenBLAS, so that a fork is safe. A program gets
back the number of threads it would have had in a fresh interpreter.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable, Mapping

_VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)


def restore(paths: Iterable[str], environ: Mapping[str, str]) -> None:
    """Give these BLAS libraries the threads that the environment or the affinity allow."""
    count = len(os.sched_getaffinity(0))
    for name in _VARIABLES:
        if environ.get(name, "").isdigit() and int(environ[name]) > 0:
            count = min(count, int(environ[name]))
            break
    if count == 1:
        return
    for path in paths:
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(path)
            for name in _SETTERS:
                setter = getattr(library, name, None)
                if setter is not None:
                    setter(ctypes.c_int(count))
                    break


def libraries() -> list[str]:
    """The OpenBLAS libraries mapped into this process."""
    found: dict[str, None] = {}
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if "openblas" in path and ".so" in path:
                found["/" + path] = None
    return list(found)
