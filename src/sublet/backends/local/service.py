"""The class of service of a tree of processes, as the kernel's scheduler is told.

An opportunistic tree gets a processor only when nobody else wants it (SCHED_IDLE, which also
makes its disk access wait for others'), or nice 19 where that is refused. Between sessions the
kernel compares the weights of their autogroups and not the processes in them, so that weight is
lowered too. New threads and children inherit the class; the tree is looked over again and again
for those that reset it on fork, or made a session, and with it an autogroup, of their own.

The way back needs the right to raise a priority (RLIMIT_NICE, CAP_SYS_NICE). Without it a tree
that was opportunistic stays so; that is told, not hidden. It decides nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from . import tree

GUARANTEED, OPPORTUNISTIC = "guaranteed", "opportunistic"
_AGAIN = 1.0
_SOON = 0.15
"""Who is not the administrator may set one autogroup in a tenth of a second."""
_LOWEST = 19


class Service:
    """The class of one tree; `members` finds its processes, now.

    `due` is when it wants its next `turn`.
    """

    def __init__(self, members: Callable[[], list[int]], name: str, nice: int) -> None:
        self.name = name
        self.refused = False
        """Whether the kernel did not let us set the class on all of the tree."""
        self.due = time.monotonic() + _SOON if name == OPPORTUNISTIC else float("inf")
        self._members = members
        self._nice = nice

    def change(self, name: str) -> None:
        """Put the whole tree into another class; `turn` sees to it."""
        self.name = name
        self.turn(time.monotonic())

    def turn(self, now: float) -> None:
        """Set the class wherever it is not set."""
        low = self.name == OPPORTUNISTIC
        pids = self._members()
        weighed = [_weigh(pid, _LOWEST if low else 0) for pid in pids]
        classed = [_put(thread, low, self._nice) for pid in pids for thread in tree.threads(pid)]
        self.refused = not all(classed)
        if not all(weighed):
            self.due = now + _SOON
        else:
            self.due = now + _AGAIN if low else float("inf")


def enter(name: str) -> None:
    """Put the calling process into its class before it has threads or children."""
    if name == OPPORTUNISTIC:
        _weigh(os.getpid(), _LOWEST)
        _put(0, True, 0)


def _put(thread: int, low: bool, nice: int) -> bool:
    """Set the class of one thread; True if that was allowed, or it has ended."""
    try:
        policy = os.sched_getscheduler(thread) & ~os.SCHED_RESET_ON_FORK
        if low and policy == os.SCHED_IDLE:
            return True
        if low:
            return _lower(thread)
        if policy == os.SCHED_IDLE:
            os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
        if os.getpriority(os.PRIO_PROCESS, thread) == _LOWEST:
            os.setpriority(os.PRIO_PROCESS, thread, nice)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


def _lower(thread: int) -> bool:
    try:
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    except PermissionError:
        os.setpriority(os.PRIO_PROCESS, thread, _LOWEST)
    return True


def _weigh(pid: int, nice: int) -> bool:
    """The autogroup of a process; True if it weighs that much, or there are none here."""
    path = f"/proc/{pid}/autogroup"
    try:
        with open(path, encoding="ascii") as file:
            if file.read().split()[-1:] in ([], [str(nice)]):
                return True
        with open(path, "w", encoding="ascii") as file:
            file.write(str(nice))
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
