"""The processors that a tree of processes may use for now.

All threads of a confined tree are kept on a part of its processors. New threads and children
inherit that; the tree is looked over again and again for those that chose anew. A thread that chose
some of that part for itself is left there. One that chose others is moved, and its choice is not
remembered: when the tree is let go, it may use all of them. It decides nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection

from . import process_tree

_AGAIN = 1.0


class Affinity:
    """The processors of one tree; `members` finds its processes, now.

    `whole` are all that it was started with. `due` is when it wants its next `turn`.
    """

    def __init__(self, members: Callable[[], list[int]], whole: Collection[int]) -> None:
        self.whole = frozenset(whole)
        self.part = self.whole
        self.due = float("inf")
        self._members = members
        self._given: set[frozenset[int]] = set()
        """What threads were put on: one that stands there has not chosen it."""

    def confine(self, part: Collection[int]) -> None:
        """Keep the tree on these of its processors; on all of them if none are its own."""
        wanted = self.whole.intersection(part) or self.whole
        if wanted == self.part:
            return
        self.part = wanted
        self._given.add(wanted)
        now = time.monotonic()
        self.turn(now)
        # Once more when it is let go, too: a thread may just have been born of one not yet moved.
        self.due = now + _AGAIN

    def turn(self, now: float) -> None:
        """Put every thread where it belongs."""
        for pid in self._members():
            for thread in process_tree.threads(pid):
                self._put(thread)
        self.due = now + _AGAIN if self.part != self.whole else float("inf")

    def _put(self, thread: int) -> None:
        try:
            stands = frozenset(os.sched_getaffinity(thread))
            chosen = stands not in self._given and stands <= self.part
            if stands != self.part and not chosen:
                os.sched_setaffinity(thread, self.part)
        except OSError:
            # It has ended, or the machine has taken these processors away.
            return
