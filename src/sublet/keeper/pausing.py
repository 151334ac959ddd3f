"""Stops a whole tree of processes and lets it go on: for a pause, or in turns.

A pause uses the tree's own control group where there is one, signals elsewhere. Turns always use
signals: a worker asks the kernel for SIGCONT when its keeper dies, so that it is not left
standing, and a frozen group would have nobody to thaw it. It decides nothing.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from . import process_tree
from .cgroup import Cgroup

PERIOD = 0.1
"""Seconds of one turn: a share of it running, the rest standing."""
_PASSES = 6
_LOOK_SOON = 0.02
_LOOK_LATER = 1.0


class Pause:
    """The brake of one tree; `members` finds its processes, now.

    `due` is when it wants its next `turn`.
    """

    def __init__(self, members: Callable[[], list[int]], group: Cgroup | None) -> None:
        self.paused = False
        self.share = 1.0
        self.due = float("inf")
        self._members = members
        self._group = group
        self._frozen = False
        self._held: dict[int, int] = {}
        """Those we have stopped, and when they started: who was stopped by others stays so."""

    def pause(self, on: bool) -> None:
        """Stop the tree until the pause is taken back."""
        if on == self.paused:
            return
        self.paused = on
        if not on:
            self._release()
        self.due = time.monotonic()

    def duty(self, share: float) -> None:
        """Let the tree run for this share of the time; 1 for all of it."""
        self.share = min(1.0, max(0.01, share))
        if not self.paused:
            self._release()
            self.due = time.monotonic()

    def turn(self, now: float) -> None:
        """Do what is due."""
        if self.paused:
            # Looked at again for ever: somebody else may send SIGCONT.
            self.due = now + (_LOOK_LATER if self._stand() else _LOOK_SOON)
        elif self.share >= 1.0:
            self.due = float("inf")
        elif self._held:
            self._release()
            self.due = now + PERIOD * self.share
        else:
            self._stop_running()
            self.due = now + PERIOD * (1.0 - self.share)

    def let_go(self) -> None:
        """Take the brake off for good: the tree is to end, and needs to run for that."""
        self.paused, self.share = False, 1.0
        self._release()
        self.due = float("inf")

    def _stand(self) -> bool:
        """Stop all; True once nothing of the tree runs any more."""
        if self._frozen or (self._group is not None and self._group.freeze(True)):
            self._frozen = True
            return True
        # A tree that forks meanwhile: until two passes in a row have found nobody running. One
        # may miss a child whose parent ends in the middle of it: that child moves up the tree.
        quiet = 0
        for _ in range(_PASSES):
            quiet = 0 if self._stop_running() else quiet + 1
            if quiet == 2:
                return True
        return False

    def _stop_running(self) -> list[int]:
        running = [pid for pid in self._members() if not process_tree.stands(pid)]
        for pid in running:
            self._held[pid] = process_tree.start_time(pid) or 0
        process_tree.send(running, signal.SIGSTOP)
        return running

    def _release(self) -> None:
        if self._frozen and self._group is not None:
            self._group.freeze(False)
            self._frozen = False
        held = [pid for pid, start in self._held.items() if process_tree.is_alive(pid, start)]
        process_tree.send(held, signal.SIGCONT)
        self._held.clear()


def release(pids: list[int], group: Cgroup | None) -> None:
    """Let a tree go on that has lost its keeper; who had stopped which of them is not known."""
    if group is not None:
        group.freeze(False)
    process_tree.send(pids, signal.SIGCONT)
