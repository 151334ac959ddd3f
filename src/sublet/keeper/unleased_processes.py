"""Processes of a tree in which TensorFlow knows nothing of the lease.

A lease goes to a program's children by their environment. Who starts a child with another one
(`env -i`, `subprocess.run(..., env={})`) starts it without the lease. Such a process is not
stopped: what it takes is measured and counted like all else. It is named to its user, once.
"""

from __future__ import annotations

import contextlib
import os

from . import process_tree

_LEASE = b"SUBLET_LEASE="
_LIBRARY = b"libtensorflow"
_MOST_NAMED = 5


class UnleasedProcesses:
    """The look for them in the tree of one worker."""

    def __init__(self, worker: int) -> None:
        self._worker = worker
        # A child that a warm worker has forked shows the environment of the nursery, as we do.
        self._own = _read(os.getpid(), "environ")
        self._leased: dict[int, int] = {}
        self._named: dict[int, int] = {}

    def look(self, pids: list[int]) -> None:
        """Name those of these processes that were not named yet."""
        known = self._leased | self._named
        for pid in pids:
            start = process_tree.start_time(pid)
            if start is None or known.get(pid) == start:
                continue
            environ = _read(pid, "environ")
            if environ is None or _LEASE in environ or environ == self._own:
                self._leased[pid] = start
            elif _LIBRARY in (_read(pid, "maps") or b""):
                self._named[pid] = start
                if len(self._named) <= _MOST_NAMED:
                    self._say(pid)

    def _say(self, pid: int) -> None:
        """A line on the program's own stderr, if that can be had without waiting."""
        line = (
            f"sublet: {process_tree.name(pid)} ({pid}) uses TensorFlow outside of this lease: it "
            "was started without SUBLET_LEASE in its environment, so nothing holds it to the "
            "ceiling\n"
        )
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            stream = os.open(f"/proc/{self._worker}/fd/2", flags)
            try:
                os.write(stream, line.encode())
            finally:
                os.close(stream)


def _read(pid: int, name: str) -> bytes | None:
    """One of the kernel's files on a process; None if it is not to be had."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return None
