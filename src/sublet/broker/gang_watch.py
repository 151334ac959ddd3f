"""Finds the task that a cluster waits for: TensorFlow itself waits for it without a word.

Looks at what everybody of this user can see: which ports are open, which processes stand still, who
uses a processor, how long logs are. Asks a task for its Python stacks where that helps, and ends
nobody.
"""

import contextlib
import os
import signal
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sublet.broker.state import State
from sublet.clock import Clock
from sublet.domain.job import Gang, Job, Process, Running
from sublet.formats import stack_dump
from sublet.keeper import process_tree
from sublet.reactor import Reactor

_EVERY = 1.0
"""Seconds between looks at the tasks of all clusters."""
_LISTENS = "0A"
_IDLE = 0.02
"""A task that uses less of a processor waits for something."""
_HELD = 5.0
"""Seconds after which a stopped process is worth a word."""
_DUMP = 3.0
"""Seconds in which a task that was asked for its stacks writes them."""
_TAIL = 1 << 16
"""Bytes of a log in which the stacks are looked for."""


class Task(NamedTuple):
    """What is looked at of one task that holds a lease."""

    job: int
    attempt_id: str
    worker: Process | None
    """None if it does not run: it starts, was paused, or is being stopped."""
    port: int | None
    """None for one that nobody connects to."""
    log: Path


def task_of(job: Job, logs: Path) -> Task:
    """A job of a gang that holds a lease, as it is looked at."""
    gang, state, lease = job.spec.gang, job.state, job.lease
    assert gang is not None
    assert lease is not None
    runs = isinstance(state, Running) and not state.stopping
    return Task(
        job.id,
        job.attempt_id,
        state.worker if isinstance(state, Running) and runs else None,
        lease.ports[gang.at] if gang.role != "evaluator" else None,
        logs / f"{job.attempt_id}.log",
    )


class GangWatch:
    """What is wrong with tasks that run, by job. Nothing is kept of it: the next broker looks
    anew."""

    def __init__(
        self,
        state: State,
        clock: Clock,
        reactor: Reactor,
        logs: Path,
        tell: Callable[[Collection[int]], object],
    ) -> None:
        """`tell` is called with the tasks of which something else is found than before."""
        self.findings: dict[int, str] = {}
        self._state = state
        self._clock = clock
        self._reactor = reactor
        self._logs = logs
        self._tell = tell
        self._clusters: dict[int, ClusterWatch] = {}
        """By gang."""
        self._adopted: set[str] = set()
        """Attempts that began under an earlier broker, which may have seen what this one has
        not."""

    def adopt(self) -> None:
        """Go on with what runs already."""
        self._adopted = {job.attempt_id for job in self._holding()}
        self.note(job.id for job in self._holding())

    def note(self, changed: Iterable[int]) -> None:
        """These jobs have changed: look after those that are tasks of clusters from here on."""
        if any(self._is_task(number) for number in changed):
            self._reactor.call_once(_EVERY, self._look)

    def was_seen(self, job: Job) -> bool:
        """Whether a job that has a port was, as far as is known, seen to open it."""
        gang = job.spec.gang
        if gang is None or gang.role == "evaluator" or job.attempt_id in self._adopted:
            return True
        cluster = self._clusters.get(gang.first)
        return cluster is not None and job.id in cluster.opened

    def _is_task(self, number: int) -> bool:
        job = self._state.get(number)
        return job is not None and job.spec.gang is not None

    def _holding(self) -> list[Job]:
        return [job for job in self._state.holding() if job.spec.gang is not None]

    def _look(self) -> None:
        gangs: dict[int, tuple[Gang, list[Task]]] = {}
        for job in self._holding():
            assert job.spec.gang is not None
            _, tasks = gangs.setdefault(job.spec.gang.first, (job.spec.gang, []))
            tasks.append(task_of(job, self._logs))
        before, now = dict(self.findings), self._clock.now()
        self.findings.clear()
        for first, (gang, tasks) in gangs.items():
            if first not in self._clusters:
                self._clusters[first] = ClusterWatch(len(gang.numbers), gang.stall)
            self.findings.update(self._clusters[first].look(tasks, now))
        self._clusters = {first: self._clusters[first] for first in gangs}
        changed = [
            number
            for number in before.keys() | self.findings.keys()
            if before.get(number) != self.findings.get(number)
        ]
        if changed:
            self._tell(sorted(changed))
        if gangs:
            self._reactor.call_once(_EVERY, self._look)


@dataclass
class _Round:
    """What was seen while each task was in one attempt."""

    complete: float
    """Since when all tasks run."""
    moved: float
    """When one of them last did something."""
    attempts: dict[int, str] = field(default_factory=dict)
    opened: set[int] = field(default_factory=set)
    asked: set[tuple[str, int]] = field(default_factory=set)
    """Who was asked for stacks, and why: each once."""
    dumped: float | None = None
    """When all were asked for their stacks, which is no sign of life."""
    hanging: dict[int, str] = field(default_factory=dict)
    """Where those are that do not wait inside TensorFlow."""
    spent: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Processor time of each task, and when it was read."""
    written: dict[int, int] = field(default_factory=dict)
    """Bytes in the log of each."""
    stopped: dict[int, float] = field(default_factory=dict)


class ClusterWatch:
    """Watches the tasks of one cluster."""

    def __init__(self, size: int, patience: float) -> None:
        """`patience`: seconds that a cluster may stand still."""
        self._size = size
        self._patience = patience
        self._round = _Round(0.0, 0.0)

    @property
    def opened(self) -> Collection[int]:
        """The tasks that were seen to open their ports."""
        return self._round.opened

    def look(self, tasks: Collection[Task], now: float) -> dict[int, str]:
        """What is wrong now with each task that something is wrong with."""
        seen = self._round
        if any(seen.attempts.get(one.job) != one.attempt_id for one in tasks):
            seen = self._round = _Round(now, now)
            seen.attempts = {one.job: one.attempt_id for one in tasks}
        listeners = [one for one in tasks if one.port is not None]
        if any(one.job not in seen.opened for one in listeners):
            ports = open_ports()
            seen.opened |= {one.job for one in listeners if one.port in ports}
        running = {one: one.worker for one in tasks if one.worker is not None}
        if len(running) < self._size:
            seen.complete = now  # Not all of them run: they start, or end.
        moved = self._have_moved(running, now)
        found = self._stopped(running, now)
        if now - seen.complete >= self._patience:
            found = self._missing(running) | found
        if found or not running:
            seen.moved = now
            return found
        return self._still(running, moved, now)

    def _stopped(self, running: Mapping[Task, Process], now: float) -> dict[int, str]:
        found = {}
        for task, worker in running.items():
            if not process_tree.is_stopped(worker.pid):
                self._round.stopped.pop(task.job, None)
            elif now - self._round.stopped.setdefault(task.job, now) >= _HELD:
                found[task.job] = (
                    f"is stopped, and the others wait for it: `kill -CONT {worker.pid}` lets it "
                    "go on"
                )
        return found

    def _missing(self, running: Mapping[Task, Process]) -> dict[int, str]:
        listeners = [task for task in running if task.port is not None]
        closed = [task for task in listeners if task.job not in self._round.opened]
        if len(closed) == len(listeners):
            return {
                task.job: f"has not opened its port for {self._patience:.0f} s, like all tasks: "
                "each runs alone if the program makes no strategy that reads TF_CONFIG"
                for task in closed
            }
        for task in closed:
            self._ask(task.job, running[task], "missing")
        return {
            task.job: f"has not opened its port 127.0.0.1:{task.port} for {self._patience:.0f} s, "
            f"and the others wait for it{self._where('missing', task.job)}"
            for task in closed
        }

    def _still(self, running: Mapping[Task, Process], moved: bool, now: float) -> dict[int, str]:
        """Of a cluster in which nobody does anything: all tasks, and who does not wait inside
        TensorFlow."""
        seen = self._round
        if seen.dumped is not None and now - seen.dumped >= _DUMP:
            stacks = {task.job: _last_lines(task.log) for task in running}
            seen.hanging, seen.dumped = culprits(stacks), None
        elif moved and seen.dumped is None:
            seen.moved = now
            seen.hanging = {}
        if now - seen.moved < self._patience:
            return {}
        for task, worker in running.items():
            if self._ask(task.job, worker, "still"):
                seen.dumped = now
        return {
            task.job: f"is at {seen.hanging[task.job]}; the others wait in TensorFlow"
            if task.job in seen.hanging
            else "has used no processor and written nothing for "
            f"{self._patience:.0f} s, like all tasks{self._where('still', task.job)}"
            for task in running
        }

    def _ask(self, job: int, worker: Process, why: str) -> bool:
        """Ask a task for its stacks, if this was not done before for this reason."""
        if (why, job) in self._round.asked or not ask_for_stacks(worker):
            return False
        self._round.asked.add((why, job))
        return True

    def _where(self, why: str, job: int) -> str:
        return "; its log has its Python stacks" if (why, job) in self._round.asked else ""

    def _have_moved(self, running: Mapping[Task, Process], now: float) -> bool:
        """Whether a task has used a processor or written anything since the last look."""
        seen, moved = self._round, False
        for task, worker in running.items():
            pids = [worker.pid, *process_tree.descendants(worker.pid)]
            spent, written = process_tree.processor_time(pids), _size(task.log)
            before, at = seen.spent.get(task.job, (spent, now))
            busy = now > at and (spent - before) / (now - at) > _IDLE
            moved = moved or busy or written != seen.written.get(task.job)
            seen.spent[task.job], seen.written[task.job] = (spent, now), written
        return moved


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


def ask_for_stacks(worker: Process) -> bool:
    """Have a task write its Python stacks to its log; False if it does not listen for that."""
    try:
        process = os.pidfd_open(worker.pid)
    except OSError:
        return False
    try:
        if not process_tree.is_alive(worker.pid, worker.start):
            return False
        status = (process_tree.read_file(worker.pid, "status") or b"").decode(errors="replace")
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
    for at, line in reversed(list(enumerate(lines[:-1]))):
        if line.startswith("Current thread"):
            return lines[at + 1].strip()
    return ""


def _size(log: Path) -> int:
    try:
        return os.lstat(log).st_size
    except OSError:
        return 0


def _last_lines(log: Path) -> list[str]:
    """The end of a log, which its program can replace by anything."""
    try:
        file = os.open(log, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode):
            return []
        data = os.pread(file, _TAIL, max(0, facts.st_size - _TAIL))
    except OSError:
        return []
    finally:
        os.close(file)
    return data.decode(errors="replace").splitlines()
