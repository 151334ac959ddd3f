"""Finds the task that a cluster waits for: TensorFlow itself waits for it without a word.

Looks at what everybody of this user can see: which ports are open, which processes stand still, who
uses a processor. Asks a task for its Python stacks where that helps, and ends nobody.
"""

import contextlib
import os
import signal
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sublet.formats import stack_dump
from sublet.keeper import process_tree
from sublet.wire.rows import JobRow

_LISTENS = "0A"
_IDLE = 0.02
"""A task that uses less of a processor waits for something."""
_HELD = 5.0
"""Seconds after which a stopped process is worth a word."""


def title(row: JobRow) -> str:
    """A task by its name, such as "worker 1 (#14)"."""
    return f"{row.role} {row.role_index} (#{row.id})"


def open_ports() -> set[int]:
    """The TCP ports on which somebody on this machine listens."""
    found = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", name).read_text().splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                if state == _LISTENS:
                    found.add(int(local.rpartition(":")[2], 16))
    return found


def ask_for_stacks(pid: int) -> bool:
    """Have a task write its Python stacks to its log; False if it does not listen for that."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        status = (process_tree.read_file(pid, "status") or b"").decode(errors="replace")
        caught = next((row for row in status.splitlines() if row.startswith("SigCgt:")), ":0")
        # Who does not catch it would be ended by it.
        if not int(caught.partition(":")[2], 16) >> (stack_dump.SIGNAL - 1) & 1:
            return False
        signal.pidfd_send_signal(process, stack_dump.SIGNAL)
    except OSError:
        return False
    finally:
        os.close(process)
    return True


@dataclass
class _Round:
    """What was seen while each task was in one attempt."""

    attempts: tuple[str, ...] = ()
    complete: float = 0.0
    """Since when all tasks run."""
    moved: float = 0.0
    """When one of them last did something."""
    opened: set[int] = field(default_factory=set)
    told: set[tuple[str, int]] = field(default_factory=set)
    spent: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Processor time of each task, and when it was read."""
    stopped: dict[int, float] = field(default_factory=dict)

    def tell(self, what: str, job: int = 0) -> bool:
        """Whether this is said for the first time."""
        new = (what, job) not in self.told
        self.told.add((what, job))
        return new


class ClusterWatch:
    """Watches the tasks of one cluster. Each finding is told once in a round of attempts."""

    def __init__(self, patience: float) -> None:
        """`patience`: seconds that a cluster may stand still."""
        self._patience = patience
        self._round = _Round()
        self.asked: set[int] = set()
        """The tasks that were asked for their stacks because nothing moved."""

    def look(self, rows: Collection[JobRow], now: float, moved: bool) -> Iterator[str]:
        """What is wrong, in sentences. `moved`: there was output since the last look."""
        attempts = tuple(row.attempt_id for row in rows)
        if attempts != self._round.attempts:
            self._round, self.asked = _Round(attempts, now, now), set()
        seen = self._round
        running = [row for row in rows if row.state == "running" and row.pid is not None]
        ports = open_ports()
        seen.opened |= {row.id for row in rows if row.port in ports}
        if len(running) < len(rows):
            seen.complete = now  # Not all of them run: they start, or end.
        yield from self._look_for_stopped(running, now)
        if now - seen.complete >= self._patience:
            yield from self._look_for_missing(running)
        if moved or not running or self._busy(running, now):
            seen.moved = now
        elif now - seen.moved >= self._patience and not seen.told:
            seen.tell("still")
            self.asked = {row.id for row in running if row.pid and ask_for_stacks(row.pid)}
            yield (
                f"no task has used a processor or written anything for {self._patience:.0f} s; "
                "these are their Python stacks:"
            )

    def unused(self, rows: Collection[JobRow]) -> list[JobRow]:
        """Tasks that have ended well, and were never seen to open their ports."""
        return [
            row
            for row in rows
            if row.cause == "exited"
            and row.code == 0
            and row.port is not None
            and row.id not in self._round.opened
        ]

    def _look_for_stopped(self, running: Collection[JobRow], now: float) -> Iterator[str]:
        for row in running:
            assert row.pid is not None
            if not process_tree.is_stopped(row.pid):
                self._round.stopped.pop(row.id, None)
                continue
            since = self._round.stopped.setdefault(row.id, now)
            if now - since >= _HELD and self._round.tell("stopped", row.id):
                yield (
                    f"{title(row)} is stopped, and the others wait for it: "
                    f"`kill -CONT {row.pid}` lets it go on"
                )

    def _look_for_missing(self, running: Collection[JobRow]) -> Iterator[str]:
        listeners = [row for row in running if row.port is not None]
        closed = [row for row in listeners if row.id not in self._round.opened]
        if closed and len(closed) == len(listeners):
            if self._round.tell("nobody"):
                yield (
                    f"no task has opened its port for {self._patience:.0f} s. Each runs alone if "
                    "the program makes no strategy that reads TF_CONFIG"
                )
            return
        for row in closed:
            if self._round.tell("missing", row.id):
                assert row.pid is not None
                stacks = "; its Python stacks:" if ask_for_stacks(row.pid) else ""
                yield (
                    f"{title(row)} has not opened its port 127.0.0.1:{row.port} for "
                    f"{self._patience:.0f} s, and the others wait for it{stacks}"
                )

    def _busy(self, running: Collection[JobRow], now: float) -> bool:
        """Whether a task has used a processor since the last look."""
        busy = False
        for row in running:
            assert row.pid is not None
            pids = [row.pid, *process_tree.descendants(row.pid)]
            spent = process_tree.processor_time(pids)
            before, at = self._round.spent.get(row.id, (spent, now))
            if now - at >= 1.0 or row.id not in self._round.spent:
                self._round.spent[row.id] = (spent, now)
                busy = busy or (now > at and (spent - before) / (now - at) > _IDLE)
        return busy


def culprits(stacks: Mapping[int, Collection[str]]) -> dict[int, str]:
    """Of tasks that all stand still: those that do not wait inside TensorFlow, and where they are.

    `stacks` are their last lines, with what `faulthandler` has written: the thread that was asked
    comes with "Current thread", its innermost call first.
    """
    found = {}
    for job, lines in stacks.items():
        frame = _innermost(list(lines))
        if frame and "/tensorflow/" not in frame:
            found[job] = frame
    return found if len(found) < len(stacks) else {}


def _innermost(lines: list[str]) -> str:
    for at, line in enumerate(lines[:-1]):
        if line.startswith("Current thread"):
            return lines[at + 1].strip()
    return ""
