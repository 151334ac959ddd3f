"""Holds a running program to a smaller ceiling than it started with.

The broker names the new ceiling in the attempt's directory (`attempt_files.write_ceiling`).

On the CPU the allocator takes memory from the kernel in regions, and the kernel can refuse the next
one: RLIMIT_DATA, which counts private writable mappings whether or not their pages were touched, is
set to what the process has now, plus the rest of the new ceiling, plus some for all that is not
TensorFlow. To TensorFlow a refusal is a full device: it waits, then raises ResourceExhaustedError.
This costs nothing; a ballast tensor would need a table of 1/32 of the difference (128 MiB for
4 GiB). Only the soft limit is set, so that a larger ceiling can be given back later.

Regions taken before stay usable, so a program may exceed the ceiling by what its allocator had
taken and did not use. On a GPU nothing can be refused: there the broker watches.
"""

from __future__ import annotations

import resource

from ..formats import attempt_files
from ..formats.lease import LeaseTerms

OTHERS = 256 << 20
"""Bytes that Python, NumPy and threads may still take."""


def asked(lease: LeaseTerms) -> int | None:
    """The ceiling that the broker has named since the start; None if there is no valid one."""
    ceiling = attempt_files.read_ceiling(lease.dir)
    return ceiling if ceiling is not None and 0 < ceiling <= lease.ceiling else None


def hold(lease: LeaseTerms, ceiling: int, peak: int) -> bool:
    """Hold this process to a new ceiling; False if that cannot be enforced."""
    if lease.on_gpu:
        return False
    now = _writable()
    if now is None:
        return False
    try:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = now + max(0, ceiling - peak) + OTHERS
        if ceiling >= lease.ceiling:
            limit = hard
        elif hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    except (OSError, ValueError):
        return False
    return True


def _writable() -> int | None:
    """Bytes of private writable memory, counted as for the limit."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            for line in file:
                if line.startswith("VmData:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
