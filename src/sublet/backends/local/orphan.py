"""What a broker goes on doing for a tree whose keeper was killed.

It wakes what the keeper held in turns, keeps a pause, the time limit, the processors and the bound
on output, and passes SIGTERM on. Not kept up are turns (`duty`) and the look for processes that
leave their class of service: the class itself stays, as the kernel knows it. A tree that lost its
broker as well stays on the processors it was left on, until it is confined anew.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

from . import brake, records, tree
from .cgroup import Cgroup
from .keeper import GRACE
from .logs import LIMIT, Trimmer
from .processors import Processors
from .runtime import Runtime
from .service import GUARANTEED, Service


class Orphan:
    """One such tree. `members` finds its processes."""

    def __init__(
        self, directory: str, members: Callable[[], list[int]], group: Cgroup | None
    ) -> None:
        spec = records.read(directory, "spec.json") or {}
        worker = records.read(directory, "worker.json") or {}
        logs = spec.get("logs") or {}
        self.runtime = Runtime.resume(
            directory, spec.get("time"), worker.get("began", time.monotonic())
        )
        self.grace = float(spec.get("grace", GRACE))
        self._directory = directory
        self._members = members
        self._group = group
        self._nice = int(spec.get("nice", 0))
        self._brake = brake.Brake(members, group)
        self._processors = Processors(members, spec.get("affinity", ()))
        self._trimmer = Trimmer(logs.get("paths", []), logs.get("limit", LIMIT))
        if self.runtime.paused:
            self._brake.pause(True)
        else:
            brake.release(members(), group)

    def hear(self, wishes: dict[str, Any]) -> None:
        """What the keeper would have been told."""
        if "pause" in wishes and wishes["pause"] != self.runtime.paused:
            self.runtime.pause(wishes["pause"], self._directory)
            self._brake.pause(wishes["pause"])
            if not wishes["pause"]:
                # The keeper knew which of them it had stopped; we do not.
                brake.release(self._members(), self._group)
        if "processors" in wishes:
            self._processors.confine(wishes["processors"])
        if "service" in wishes:
            Service(self._members, GUARANTEED, self._nice).change(wishes["service"])

    def ask_to_end(self) -> None:
        """SIGTERM to all; what stands is woken, so that it can act on it."""
        self._brake.let_go()
        members = self._members()
        tree.send(members, signal.SIGTERM)
        brake.release(members, self._group)

    def turn(self) -> float:
        """Do what is due; the seconds until something is again."""
        now = time.monotonic()
        for chore in (self._brake, self._processors, self._trimmer):
            if now >= chore.due:
                chore.turn(now)
        due = min(self._brake.due, self._processors.due, self._trimmer.due, now + 1.0) - now
        return max(0.01, min(due, self.runtime.left()))

    def close(self) -> None:
        """The tree is gone."""
        self._trimmer.close()
        if self._group is not None:
            self._group.close()
