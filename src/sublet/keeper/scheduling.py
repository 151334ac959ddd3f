"""The class of service of a tree of processes, as the kernel's scheduler is told.

An opportunistic tree gets a processor only when nobody else wants it (SCHED_IDLE, which also
makes its disk access wait for others'), or nice 19 where that is refused. Between sessions the
kernel compares the weights of their autogroups and not the processes in them, so that weight is
lowered too. New threads and children inherit the class; the tree is looked over again and again
for those that reset it on fork, or made a session, and with it an autogroup, of their own. There is
no way back: raising a priority is a right that most users do not have. It decides nothing.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

from . import process_tree

GUARANTEED, OPPORTUNISTIC = "guaranteed", "opportunistic"
_AGAIN = 1.0
_SOON = 0.15
"""Who is not the administrator may set one autogroup in a tenth of a second."""
_LOWEST = 19


class SchedulingClass:
    """Keeps one tree in its class; `members` finds its processes, now.

    `due` is when it wants its next `turn`.
    """

    def __init__(self, members: Callable[[], list[int]], name: str) -> None:
        self.due = time.monotonic() + _SOON if name == OPPORTUNISTIC else float("inf")
        self._members = members

    def turn(self, now: float) -> None:
        """Set the class wherever it is not set."""
        pids = self._members()
        weighed = [_weigh(pid) for pid in pids]
        for pid in pids:
            for thread in process_tree.threads(pid):
                _lower(thread)
        self.due = now + (_AGAIN if all(weighed) else _SOON)


def enter(name: str) -> None:
    """Put the calling process into its class before it has threads or children."""
    if name == OPPORTUNISTIC:
        _weigh(os.getpid())
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


def _weigh(pid: int) -> bool:
    """The autogroup of a process; True if it weighs least, or there are none here."""
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
