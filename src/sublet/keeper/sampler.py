"""What a tree of processes holds and does, measured now and then. It decides nothing."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from typing import Any

from . import process_tree

_PAUSES = (0.7, 1.0, 2.0, 4.0)
"""Seconds before each measurement; the last again and again. To measure a program with TensorFlow
in it takes the kernel some 14 ms, for which the program's own memory stands still."""
_MOST_NAMED = 500


class Pace:
    """How many processors are kept busy, from one reading to the next."""

    def __init__(self, worked: float = 0.0) -> None:
        self._at = time.monotonic()
        self._worked = worked

    def read(self, worked: float) -> float:
        """`worked` are all processor seconds so far."""
        since, before = self._at, self._worked
        self._at, self._worked = time.monotonic(), worked
        return max(0.0, worked - before) / max(self._at - since, 0.001)


class Sampler:
    """The gauge of the calling process's tree; `tell` hears each measurement, and `look` has a look
    at the processes, too.

    `due` is when it wants its next `turn`.
    """

    def __init__(
        self, tell: Callable[[dict[str, Any]], None], look: Callable[[list[int]], None]
    ) -> None:
        self.peak = 0
        self.due = time.monotonic() + _PAUSES[0]
        self._tell = tell
        self._look = look
        self._pace = Pace()
        self._turns = 0
        self._own = 0

    def turn(self, now: float) -> None:
        """Measure what the tree adds to the machine, and how many processors it keeps busy."""
        self.due = now + _PAUSES[min(self._turns, len(_PAUSES) - 1)]
        self._turns += 1
        pids = process_tree.descendants(os.getpid())
        if self._turns == 1:
            # Once: it hardly changes, while faults add up.
            self._own = _own_memory()
        held = process_tree.added_memory(pids) + self._own
        self.peak = max(self.peak, held)
        busy = self._pace.read(_worked(pids))
        self._tell({"now": held, "peak": self.peak, "pids": pids[:_MOST_NAMED], "busy": busy})
        self._look(pids)

    def begin_anew(self) -> None:
        """A pause is over, and no part of what the tree does from now on."""
        self._pace.read(_worked(process_tree.descendants(os.getpid())))
        self.due = time.monotonic() + _PAUSES[0]


def _own_memory() -> int:
    """What the calling process adds itself, at most: each page of its own came by a fault. To
    measure it would take as long as the program's."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt * resource.getpagesize()


def _worked(pids: list[int]) -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return process_tree.processor_time(pids) + ended.ru_utime + ended.ru_stime
