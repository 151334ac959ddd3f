"""Stops a whole tree of processes and lets it go on: for a pause, or for a share of the time.

A pause uses the tree's control group where there is one, otherwise signals. Sharing the time always
uses signals: a worker has the kernel send it SIGCONT when its keeper dies, while nobody would thaw
a frozen group.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from . import process_tree
from .cgroup import Cgroup

PERIOD = 0.1
"""Seconds of one cycle, of which the tree runs for its share and stands still for the rest."""
_PASSES = 6
_LOOK_SOON = 0.02
_LOOK_LATER = 1.0


class Pause:
    """Stops one tree; `members` lists its processes. `due` is when it wants its next `tick`."""

    def __init__(self, members: Callable[[], list[int]], group: Cgroup | None) -> None:
        self.paused = False
        self.share = 1.0
        self.due = float("inf")
        self._members = members
        self._group = group
        self._frozen = False
        self._held: dict[int, int] = {}
        """Processes that we have stopped, with their start times; others stay stopped."""

    def pause(self, on: bool) -> None:
        """Stop the tree, or let it go on."""
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

    def tick(self, now: float) -> None:
        """Stop or release the processes that should be."""
        if self.paused:
            # Checked for as long as it lasts: somebody else may send SIGCONT.
            self.due = now + (_LOOK_LATER if self._stop_all() else _LOOK_SOON)
        elif self.share >= 1.0:
            self.due = float("inf")
        elif self._held:
            self._release()
            self.due = now + PERIOD * self.share
        else:
            self._stop_running()
            self.due = now + PERIOD * (1.0 - self.share)

    def let_go(self) -> None:
        """Release the tree for good, because it has to run to end."""
        self.paused, self.share = False, 1.0
        self._release()
        self.due = float("inf")

    def _stop_all(self) -> bool:
        """Stop the tree; True once nothing of it runs."""
        if self._frozen or (self._group is not None and self._group.freeze(True)):
            self._frozen = True
            return True
        # The tree may fork meanwhile: repeat until two passes in a row find nothing running. One
        # pass may miss a child whose parent ends during it, because the child moves up the tree.
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
    """Let a tree without a keeper go on, whoever stopped its processes."""
    if group is not None:
        group.freeze(False)
    process_tree.send(pids, signal.SIGCONT)
