"""Measures what a tree of processes holds and does, and finds those that run without the lease."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Callable
from typing import Any

from . import process_tree

_PAUSES = (0.7, 1.0, 2.0, 4.0)
"""Seconds before each measurement; the last one repeats. Measuring a program with TensorFlow takes
the kernel some 14 ms, during which the program cannot map memory."""
_MOST_PIDS = 500
_LEASE = b"SUBLET_LEASE="
_LIBRARY = b"libtensorflow"
_MOST_NAMED = 5


class Pace:
    """How many processors were busy between two readings."""

    def __init__(self, worked: float = 0.0) -> None:
        self._at = time.monotonic()
        self._worked = worked

    def read(self, worked: float) -> float:
        """The mean since the last reading; `worked` is the processor time so far, in seconds."""
        since, before = self._at, self._worked
        self._at, self._worked = time.monotonic(), worked
        return max(0.0, worked - before) / max(self._at - since, 0.001)


class Sampler:
    """Measures the tree of the calling process, whose worker is `worker`, and reports it."""

    def __init__(self, worker: int, report: Callable[[dict[str, Any]], None]) -> None:
        self.peak = 0
        self.due = time.monotonic() + _PAUSES[0]
        self._report = report
        self._unleased = UnleasedProcesses(worker)
        self._pace = Pace()
        self._samples = 0
        self._own = 0

    def tick(self, now: float) -> None:
        """Measure what the tree adds to the machine, and how many processors it keeps busy."""
        self.due = now + _PAUSES[min(self._samples, len(_PAUSES) - 1)]
        self._samples += 1
        pids = process_tree.descendants(os.getpid())
        if self._samples == 1:
            # Only once: it hardly changes, while page faults add up.
            self._own = _own_memory()
        held = process_tree.added_memory(pids) + self._own
        self.peak = max(self.peak, held)
        busy = self._pace.read(_worked(pids))
        self._report({"now": held, "peak": self.peak, "pids": pids[:_MOST_PIDS], "busy": busy})
        self._unleased.look(pids)

    def restart(self) -> None:
        """Begin a new interval after a pause."""
        self._pace.read(_worked(process_tree.descendants(os.getpid())))
        self.due = time.monotonic() + _PAUSES[0]


class UnleasedProcesses:
    """Finds processes of a worker's tree in which TensorFlow knows nothing of the lease.

    Children get the lease by their environment, and a child that was started with another one
    (`env -i`) runs without it. It is not stopped, and is measured like all others; its user reads
    about it once, on the worker's stderr.
    """

    def __init__(self, worker: int) -> None:
        self._worker = worker
        # A child forked by a warm worker shows the nursery's environment, as we do.
        self._own = process_tree.read_file(os.getpid(), "environ")
        self._leased: dict[int, int] = {}
        self._named: dict[int, int] = {}

    def look(self, pids: list[int]) -> None:
        """Report those of these processes that were not reported before."""
        known = self._leased | self._named
        for pid in pids:
            start = process_tree.start_time(pid)
            if start is None or known.get(pid) == start:
                continue
            environ = process_tree.read_file(pid, "environ")
            if environ is None or _LEASE in environ or environ == self._own:
                self._leased[pid] = start
            elif _LIBRARY in (process_tree.read_file(pid, "maps") or b""):
                self._named[pid] = start
                if len(self._named) <= _MOST_NAMED:
                    self._warn(pid)

    def _warn(self, pid: int) -> None:
        """Write a line to the program's stderr, if that is possible without waiting."""
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


def _own_memory() -> int:
    """What the calling process adds at most: each page of its own came by a fault. Measuring it
    would take as long as measuring the program."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt * resource.getpagesize()


def _worked(pids: list[int]) -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return process_tree.processor_time(pids) + ended.ru_utime + ended.ru_stime
