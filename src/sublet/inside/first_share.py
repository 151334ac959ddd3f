"""The share of the lease's ceiling with which TensorFlow starts in a process.

The first process of a program has all of it. One that comes later begins with a part of what is
free, and gets more when an allocation needs it. If nothing is free it waits for the others to give
back what they have not taken (`ceiling`).
"""

from __future__ import annotations

import contextlib
import os
import time

from ..formats import attempt_files, shares, usage_file
from ..formats.lease import MIB, LeaseTerms
from ..formats.shares import Share

_BEGIN = 32 * MIB
_PATIENCE = 10.0
"""Seconds that a process waits for a share: as long as TensorFlow waits for memory."""
_STARTING = 30.0
"""Seconds that it waits for one whose own start is under way, and that has all until then."""
_PAUSE = 0.01


class NoShare(Exception):
    """The other processes of the program have taken all of the lease."""


def take(lease: LeaseTerms) -> int:
    """Take a share, and return how many bytes it has. Raises NoShare if there is none for too
    long."""
    began = time.monotonic()
    pid = os.getpid()
    while True:
        total = shares.total(lease)
        others: list[Share] = []
        try:
            with shares.locked(lease.dir, _PATIENCE) as table:
                others = table.others(pid)
                limit = _first(total, others)
                table.put(Share(pid, shares.start_time(pid) or 0, limit))
        except OSError:
            limit = 0
            others = [share for share in shares.read(lease.dir) if share.pid != pid]
        if limit or not others:
            return limit or total
        starting = any(share.limit >= total for share in others)
        if time.monotonic() - began > (_STARTING if starting else _PATIENCE):
            with contextlib.suppress(OSError), shares.locked(lease.dir, _PATIENCE) as table:
                table.remove(pid)
            raise NoShare(_why(lease, others))
        time.sleep(_PAUSE)


def is_python_child(lease: LeaseTerms) -> bool:
    """Whether a Python process of the same program has started this one: then there may be others
    like it, in which TensorFlow has not started yet."""
    worker = attempt_files.read(lease.dir, "worker.json") or {}
    pid, inside = os.getpid(), os.fsencode(lease.dir)
    while pid > 1 and pid != worker.get("pid"):
        pid = _parent(pid)
        python = "python" in _program(pid)
        leased = inside in _environ(pid)
        if os.path.exists(os.path.join(lease.dir, f"{usage_file.PREFIX}{pid}")):
            return True
        if python and leased:
            return True
        if not python and not leased:
            return False  # A forked child shows the environment of its parent, others their own.
    return False


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def _program(pid: int) -> str:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""


def _environ(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _first(total: int, others: list[Share]) -> int:
    """What a process begins with, beside these."""
    if not others or any(share.fixed for share in others):
        return total
    free = max(0, total - shares.given(others)) // MIB * MIB
    begin = min(free, max(free // 4 // MIB * MIB, _BEGIN))
    return begin if begin >= shares.LEAST else 0


def _why(lease: LeaseTerms, others: list[Share]) -> str:
    return (
        f"Out of memory: no part of this lease of {lease.ceiling_mib} MiB is left for another "
        f"process of the program. It is held by {held_by(others)}. Give the program a larger lease "
        "(`--memory`), or have fewer of its processes use TensorFlow at a time."
    )


def held_by(others: list[Share]) -> str:
    """Who holds how much, such as "process 12: 300 MiB, process 13: 100 MiB"."""
    most = sorted(others, key=lambda share: -share.limit)
    named = [f"process {share.pid}: {share.limit // MIB} MiB" for share in most[:8]]
    more = len(most) - len(named)
    return ", ".join(named) + (f", and {more} more" if more > 0 else "")
