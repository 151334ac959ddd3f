"""Processes that hold a lease themselves: a notebook, a script that was there before.

Owns the watch over them: whether one has taken the lease it was offered, what it and its children
hold, that it has ended. It starts none of them and sends them no signal; they have no keeper.

A lease is taken by making the attempt's `claim` (see `attempt_files`). Whoever makes it first has
decided, the lodger or a broker that gives the offer up, whichever of them dies meanwhile. From then
on a lodger needs no connection: the broker sees its end through a descriptor of the process.
"""

import os
from pathlib import Path

from sublet.backends.local.reports import Ending, Reports, own_status, read_ending
from sublet.domain.job import Process
from sublet.formats import attempt_files
from sublet.keeper import process_tree
from sublet.keeper.sampler import Pace
from sublet.reactor import Reactor

HOW = "in its own process"
_AGAIN = 1.0
_SAMPLES = (0.5, 0.5, *(1.0,) * 30, 4.0)
"""Seconds between looks at what a lodger holds: often at first, for TensorFlow is still to come."""
_MATTERS = 4 << 20
"""A change of what is resident, in bytes, after which it is worth measuring what that adds: reading
all mappings of a process takes 20 ms, and a notebook stands still for most of its life."""


class _Lodger:
    def __init__(self, run: str, directory: str, process: Process) -> None:
        self.run = run
        self.directory = directory
        self.process = process
        self.taken = False
        self.pidfd: int | None = None
        self.resident = -_MATTERS
        self.now = 0
        self.peak = 0
        self.sampled = 0
        self.pace = Pace(process_tree.processor_time([process.pid]))


class InProcessLeases:
    """All of this machine."""

    def __init__(self, hub: Reactor, runs: Path, reports: Reports) -> None:
        self._hub = hub
        self._runs = runs
        self._reports = reports
        self._lodgers: dict[str, _Lodger] = {}

    def offer(self, run: str, record: bytes, process: Process) -> None:
        """Make the place where this process can take its lease.

        `record` is the broker's own note of the job, kept there for `sublet recover`.
        """
        directory = self._runs / run
        directory.mkdir(mode=0o700, exist_ok=True)
        (directory / "job.json").write_bytes(record)
        self._watch(self._know(run, process))

    def adopt(self, run: str, process: Process, taken: bool, rebooted: bool) -> None:
        """Take over what an earlier broker had offered; `taken` if it knew that it was."""
        lodger = self._know(run, process)
        lodger.taken = taken
        if rebooted:
            self._end(lodger, "the machine was restarted")
            return
        self.settle(run)
        if run in self._lodgers:
            self._watch(lodger)

    def settle(self, run: str) -> None:
        """The lodger has hung up, or given its lease back: look which.

        What was offered and not taken is given up: it cannot be taken any more.
        """
        lodger = self._lodgers.get(run)
        if lodger is None:
            return
        if read_ending(attempt_files.read(lodger.directory, "exit.json")) is not None:
            self._end(lodger)
            return
        if lodger.taken:
            return
        try:
            lodger.taken = self._has_taken(lodger)
        except OSError:
            # Not to be written at the moment: the lodger could still take it.
            self._hub.later(_AGAIN, lambda: self.settle(run))
            return
        if lodger.taken:
            self._reports.started(run, lodger.process, lodger.process, HOW)
            self._sample(lodger)
        else:
            self._forget(lodger)
            self._reports.never_ran(run, "it did not take its lease")

    def close(self) -> None:
        """Watch nobody any more; they go on."""
        for lodger in list(self._lodgers.values()):
            self._forget(lodger)

    @staticmethod
    def _has_taken(lodger: _Lodger) -> bool:
        try:
            if attempt_files.claim(lodger.directory, {"broker": os.getpid()}):
                return False
        except FileNotFoundError:
            return False
        # One that cannot be read is being written by the lodger: ours would be whole.
        return "broker" not in (attempt_files.read(lodger.directory, "claim") or {})

    def _know(self, run: str, process: Process) -> _Lodger:
        lodger = _Lodger(run, str(self._runs / run), process)
        self._lodgers[run] = lodger
        return lodger

    def _watch(self, lodger: _Lodger) -> None:
        if self._lodgers.get(lodger.run) is not lodger:
            return
        try:
            pidfd = os.pidfd_open(lodger.process.pid)
        except ProcessLookupError:
            self._gone(lodger)
            return
        except OSError:
            # A full table of descriptors is no exit.
            self._hub.later(_AGAIN, lambda: self._watch(lodger))
            return
        if not process_tree.is_alive(lodger.process.pid, lodger.process.start):
            os.close(pidfd)
            self._gone(lodger)
            return
        lodger.pidfd = pidfd
        self._hub.watch(pidfd, lambda: self._gone(lodger))
        if lodger.taken:
            self._sample(lodger)

    def _sample(self, lodger: _Lodger) -> None:
        """Look at what it holds, again and again."""
        if self._lodgers.get(lodger.run) is not lodger or lodger.pidfd is None:
            return
        pids = [lodger.process.pid, *process_tree.descendants(lodger.process.pid)]
        resident = sum(map(process_tree.resident_memory, pids))
        if abs(resident - lodger.resident) >= _MATTERS:
            lodger.resident = resident
            lodger.now = process_tree.added_memory(pids)
            lodger.peak = max(lodger.peak, lodger.now)
        busy = lodger.pace.read(process_tree.processor_time(pids))
        self._reports.sampled(lodger.run, lodger.now, lodger.peak, pids[:500], busy)
        pause = _SAMPLES[min(lodger.sampled, len(_SAMPLES) - 1)]
        lodger.sampled += 1
        self._hub.later(pause, lambda: self._sample(lodger))

    def _gone(self, lodger: _Lodger) -> None:
        """The process has ended."""
        self.settle(lodger.run)
        if lodger.run in self._lodgers:
            self._end(lodger)

    def _end(self, lodger: _Lodger, note: str = "") -> None:
        self._forget(lodger)
        found = read_ending(attempt_files.read(lodger.directory, "exit.json")) or Ending(None)
        status = found.status
        if status is None:
            status = own_status(lodger.directory, lodger.process.pid)
        note = found.note or note or ("" if status is not None else "it ended without a word")
        self._reports.ended(lodger.run, Ending(status, system_peak=lodger.peak or None, note=note))

    def _forget(self, lodger: _Lodger) -> None:
        del self._lodgers[lodger.run]
        if lodger.pidfd is not None:
            self._hub.unwatch(lodger.pidfd)
            os.close(lodger.pidfd)
            lodger.pidfd = None
