"""A lease that is made smaller while its program runs.

Owns the file `ceiling` in the attempt's directory, in which the broker names the new ceiling, and
how a running program is held to it. Never raises into the program.

On the CPU the allocator takes its memory from the kernel in regions, and the kernel can refuse the
next one: the limit of private writable memory (RLIMIT_DATA, which counts a mapping whether its
pages were touched or not) is set to what the process has now, the rest of the new ceiling, and some
for all that is not TensorFlow. A refusal looks to TensorFlow like a full device: it waits, then
raises ResourceExhaustedError. That costs nothing. A ballast tensor, the other way, would cost a
table of 1/32 of the difference: 128 MiB for 4 GiB. Only the soft limit is set, so that a later,
larger ceiling can be given back.

What is in regions that were taken before stays usable: the limit can be exceeded by what the
allocator had taken and did not use. On a GPU nothing can be refused: there the broker watches.
"""

from __future__ import annotations

import os
import resource

from .lease import LeaseTerms

NAME = "ceiling"
OTHERS = 256 << 20
"""Bytes that Python, NumPy and threads may still take."""


def ask(directory: str, ceiling: int) -> None:
    """The broker's side: name a new ceiling for the attempt of this directory."""
    path = os.path.join(directory, NAME)
    with open(f"{path}.new", "w", encoding="ascii") as file:
        file.write(str(ceiling))
    os.replace(f"{path}.new", path)


def is_asked(directory: str) -> bool:
    """Whether a ceiling was ever named for the attempt of this directory."""
    return os.path.exists(os.path.join(directory, NAME))


def asked(lease: LeaseTerms) -> int | None:
    """The ceiling that the broker has named since the start; None if it has not."""
    try:
        with open(os.path.join(lease.dir, NAME), encoding="ascii") as file:
            ceiling = int(file.read(32))
    except (OSError, ValueError):
        return None
    return ceiling if 0 < ceiling <= lease.ceiling else None


def hold(lease: LeaseTerms, ceiling: int, peak: int) -> bool:
    """Hold this process to a new ceiling; whether that is enforced."""
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
    """Bytes of private writable memory, as the kernel counts them for the limit."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            for line in file:
                if line.startswith("VmData:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
