"""How the kernel schedules a tree of processes: its class of service, and its processors."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection

from . import process_tree

GUARANTEED, OPPORTUNISTIC = "guaranteed", "opportunistic"
_AGAIN = 1.0
_SOON = 0.15
"""An ordinary user may set one autogroup in a tenth of a second."""
_LOWEST = 19


class SchedulingClass:
    """Keeps one tree in its class; `members` lists its processes.

    An opportunistic tree gets a processor only when nobody else wants it: SCHED_IDLE, which also
    makes its disk access wait, or nice 19 where that is refused. Between sessions the kernel
    compares autogroups and not processes, so the weight of the autogroup is lowered too. New
    threads and children inherit the class; the tree is checked again and again for those that reset
    it on fork, or made a session of their own. There is no way back, because most users may not
    raise a priority.
    """

    def __init__(self, members: Callable[[], list[int]], name: str) -> None:
        self.due = time.monotonic() + _SOON if name == OPPORTUNISTIC else float("inf")
        self._members = members

    def tick(self, now: float) -> None:
        """Set the class where it is not set."""
        pids = self._members()
        lowest = [_lower_autogroup(pid) for pid in pids]
        for pid in pids:
            for thread in process_tree.threads(pid):
                _lower(thread)
        self.due = now + (_AGAIN if all(lowest) else _SOON)


class Affinity:
    """Keeps all threads of one tree on some of the processors that it was started with (`whole`).

    New threads and children inherit the mask; the tree is checked again and again for those that
    chose another one. A thread that chose some of the allowed processors is left there. One that
    chose others is moved, and may use all of them once the tree is not confined any more.
    """

    def __init__(self, members: Callable[[], list[int]], whole: Collection[int]) -> None:
        self.whole = frozenset(whole)
        self.part = self.whole
        self.due = float("inf")
        self._members = members
        self._given: set[frozenset[int]] = set()
        """Masks that we have set: a thread with one of these has not chosen it itself."""

    def confine(self, part: Collection[int]) -> None:
        """Keep the tree on these of its processors; on all if none of these are its own."""
        wanted = self.whole.intersection(part) or self.whole
        if wanted == self.part:
            return
        self.part = wanted
        self._given.add(wanted)
        now = time.monotonic()
        self.tick(now)
        # Checked again also after a release: a new thread may have inherited the old mask.
        self.due = now + _AGAIN

    def tick(self, now: float) -> None:
        """Move every thread to where it belongs."""
        for pid in self._members():
            for thread in process_tree.threads(pid):
                self._move(thread)
        self.due = now + _AGAIN if self.part != self.whole else float("inf")

    def _move(self, thread: int) -> None:
        try:
            mask = frozenset(os.sched_getaffinity(thread))
            chosen = mask not in self._given and mask <= self.part
            if mask != self.part and not chosen:
                os.sched_setaffinity(thread, self.part)
        except OSError:
            # The thread has ended, or the machine has lost these processors.
            return


def enter(name: str) -> None:
    """Put the calling process into its class before it has threads or children."""
    if name == OPPORTUNISTIC:
        _lower_autogroup(os.getpid())
        _lower(0)


def _lower(thread: int) -> None:
    """Set the class of one thread, unless it has ended or is not ours."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.sched_getscheduler(thread) & ~os.SCHED_RESET_ON_FORK == os.SCHED_IDLE:
            return
        try:
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
        except PermissionError:
            os.setpriority(os.PRIO_PROCESS, thread, _LOWEST)


def _lower_autogroup(pid: int) -> bool:
    """Give the autogroup of a process the least weight; False if that has to be tried again."""
    path = f"/proc/{pid}/autogroup"
    try:
        with open(path, encoding="ascii") as file:
            if file.read().split()[-1:] in ([], [str(_LOWEST)]):
                return True
        with open(path, "w", encoding="ascii") as file:
            file.write(str(_LOWEST))
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
