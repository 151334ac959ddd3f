"""What a broker goes on doing for a tree whose keeper was killed.

It wakes what the keeper held in turns, keeps a pause, the time limit, the processors and the bound
on output, and ends the tree: when it is asked to, and when the worker has ended. Not kept up are
turns (`duty`) and the look for processes that leave their class of service: the class itself stays,
as the kernel knows it. A tree that lost its broker as well stays on the processors it was left on,
until it is confined anew.
"""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from sublet.domain.job import Process
from sublet.formats import attempt_files
from sublet.keeper import pausing, process_tree
from sublet.keeper.cgroup import Cgroup
from sublet.keeper.output_files import LIMIT, SizeLimit
from sublet.keeper.scheduling import Affinity
from sublet.keeper.supervisor import GRACE
from sublet.keeper.time_limit import TimeLimit
from sublet.keeper.witness import NAME
from sublet.reactor import Reactor

_AGAIN = 0.05
"""Seconds between looks at what is left of a tree that is to be gone."""


class Orphan:
    """One such tree. `late` is called when its time is up, `gone` once nothing of it is left."""

    def __init__(
        self,
        reactor: Reactor,
        directory: str,
        worker: Process,
        witness: Process | None,
        mark: str,
        group: Cgroup | None,
        late: Callable[[float], None],
        gone: Callable[[], None],
    ) -> None:
        spec = _read_spec(directory)
        began = (attempt_files.read(directory, "worker.json") or {}).get("began", -1.0)
        if not attempt_files.is_number(began, 0, time.monotonic()):
            began = time.monotonic()
        self._reactor = reactor
        self._directory = directory
        self._worker = worker
        self._witness = witness
        self._known = {worker.pid: worker.start}
        """The processes of the tree that were found last."""
        self._mark = mark
        self._group = group
        self._late = late
        self._gone = gone
        self._grace = spec["grace"]
        self._pidfd: int | None = None
        self._closed = False
        self._runtime = TimeLimit.resume(directory, spec["time"], began)
        self._brake = pausing.Pause(self._members, group)
        self._processors = Affinity(self._members, spec["affinity"])
        self._bound = SizeLimit(spec["paths"], spec["limit"])
        self._chores = (self._brake, self._processors, self._bound)
        if self._runtime.paused:
            self._brake.pause(True)
        else:
            pausing.release(self._members(), group)

    def watch(self) -> None:
        """Look after it until it is gone; that may be at once."""
        try:
            self._pidfd = os.pidfd_open(self._worker.pid)
        except OSError:
            self._press()
            return
        if not process_tree.is_alive(self._worker.pid, self._worker.start):
            self._unwatch()
            self._press()
            return
        self._reactor.watch(self._pidfd, self._worker_ended)
        self._look_after()

    def follow(self, wishes: dict[str, Any]) -> None:
        """Do what the keeper would have been asked to do."""
        if "pause" in wishes and wishes["pause"] != self._runtime.paused:
            self._runtime.pause(wishes["pause"], self._directory)
            self._brake.pause(wishes["pause"])
            if not wishes["pause"]:
                # The keeper knew which of them it had stopped; we do not.
                pausing.release(self._members(), self._group)
        if "processors" in wishes:
            self._processors.confine(wishes["processors"])

    def stop(self, grace: float) -> None:
        """Ask it to end, and see to it that it does."""
        self._ask_to_end()
        self._reactor.call_later(grace, self._press)

    def close(self) -> None:
        """Stop watching: the tree is gone."""
        self._closed = True
        self._unwatch()
        self._bound.close()
        if self._group is not None:
            self._group.close()

    def _look_after(self) -> None:
        """Do the periodic tasks, and set a timer for the next time."""
        if self._closed or self._pidfd is None:
            return
        if self._runtime.left() <= 0:
            self._late(self._grace)
        now = time.monotonic()
        for chore in self._chores:
            if now >= chore.due:
                chore.tick(now)
        due = min(now + 1.0, *(chore.due for chore in self._chores)) - now
        self._reactor.call_later(max(0.01, min(due, self._runtime.left())), self._look_after)

    def _worker_ended(self) -> None:
        self._unwatch()
        self._ask_to_end()
        self._reactor.call_later(_AGAIN, self._press)

    def _ask_to_end(self) -> None:
        """SIGTERM to all; what stands is woken, so that it can act on it."""
        self._brake.let_go()
        self._members()
        process_tree.send_exactly(self._known, signal.SIGTERM)
        if self._group is not None:
            self._group.freeze(False)
        process_tree.send_exactly(self._known, signal.SIGCONT)

    def _press(self) -> None:
        """Kill what is left, until nothing is."""
        if self._closed:
            return
        if self._members():
            if self._group is not None:
                self._group.kill()
            process_tree.send_exactly(self._known, signal.SIGKILL)
            self._reactor.call_later(_AGAIN, self._press)
        else:
            self._gone()

    def _members(self) -> list[int]:
        """The processes of the tree: what the control group lists, what is below the witness or
        was found before, and what is related to it. Where there is no group, those that have the
        mark of the attempt, too."""
        processes = process_tree.everybody()
        known = {
            pid
            for pid, start in self._known.items()
            if pid in processes and processes[pid].start == start
        }
        witness = self._witness
        if witness is not None and process_tree.is_alive(witness.pid, witness.start):
            below = {pid for pid, now in processes.items() if now.parent == witness.pid}
            known |= {pid for pid in below if process_tree.name(pid) != NAME}
        if self._group is not None:
            known.update(self._group.members())
        # If a program had to start a broker itself, that one is below the witness, and so are the
        # witnesses of others once it has ended: they are no part of the tree.
        known.discard(os.getpid())
        found = process_tree.related(processes, known)
        if self._group is None:
            found |= process_tree.marked(processes, self._mark)
        found -= {os.getpid(), 0 if witness is None else witness.pid}
        self._known = {pid: processes[pid].start for pid in found}
        return list(found)

    def _unwatch(self) -> None:
        if self._pidfd is not None:
            self._reactor.unwatch(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None


def _read_spec(directory: str) -> dict[str, Any]:
    """The fields of spec.json that are needed here, with defaults for what makes no sense."""
    spec = attempt_files.read(directory, "spec.json") or {}
    logs = spec["logs"] if isinstance(spec.get("logs"), dict) else {}
    paths = logs["paths"] if isinstance(logs.get("paths"), list) else []
    affinity = spec["affinity"] if isinstance(spec.get("affinity"), list) else []
    time_limit, grace, limit = spec.get("time"), spec.get("grace"), logs.get("limit")
    return {
        "time": time_limit if attempt_files.is_number(time_limit, 0, 1e12) else None,
        "grace": grace if attempt_files.is_number(grace, 0, 1e9) else GRACE,
        "limit": limit if type(limit) is int and limit > 0 else LIMIT,
        "paths": [path for path in paths if isinstance(path, str) and "\0" not in path],
        "affinity": [cpu for cpu in affinity if type(cpu) is int],
    }
