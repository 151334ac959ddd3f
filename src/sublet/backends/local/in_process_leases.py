"""Processes that hold a lease themselves: a notebook, a script that was there before.

Owns the watch over them: whether one has taken the lease it was offered, what it and its children
hold, that it has ended. It starts none of them and sends them no signal; they have no keeper.

A lease is taken by making the attempt's `claim` (see `attempt_files`). Whoever makes it first has
decided, the process or a broker that gives the offer up, whichever of them dies meanwhile. From
then on the process needs no connection: the broker sees its end through a pidfd.
"""

import os
from pathlib import Path

from sublet.backends.backend import Ending, Reports
from sublet.backends.local.endings import own_status, read_ending
from sublet.domain.job import Process
from sublet.formats import attempt_files
from sublet.keeper import process_tree
from sublet.keeper.sampler import Pace
from sublet.reactor import Reactor

HOW = "in its own process"
_AGAIN = 1.0
_SAMPLES = (0.5, 0.5, *(1.0,) * 30, 4.0)
"""Seconds between looks at what a process holds: often at first, before TensorFlow has started."""
_MATTERS = 4 << 20
"""A change of what is resident, in bytes, after which it is worth measuring what that adds: reading
all mappings of a process takes 20 ms, and a notebook stands still for most of its life."""


class _InProcessLease:
    def __init__(self, attempt_id: str, directory: str, process: Process) -> None:
        self.attempt_id = attempt_id
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
    """The watch over all in-process leases of this machine."""

    def __init__(self, reactor: Reactor, runs: Path, reports: Reports) -> None:
        self._reactor = reactor
        self._runs = runs
        self._reports = reports
        self._leases: dict[str, _InProcessLease] = {}

    def offer(self, attempt_id: str, record: bytes, process: Process) -> None:
        """Make the place where this process can take its lease.

        `record` is the broker's own note of the job, kept there for `sublet recover`.
        """
        directory = self._runs / attempt_id
        directory.mkdir(mode=0o700, exist_ok=True)
        (directory / "job.json").write_bytes(record)
        self._watch(self._know(attempt_id, process))

    def adopt(self, attempt_id: str, process: Process, taken: bool, rebooted: bool) -> None:
        """Take over what an earlier broker had offered; `taken` if it knew that it was."""
        lease = self._know(attempt_id, process)
        lease.taken = taken
        if rebooted:
            self._end(lease, "the machine was restarted")
            return
        self.settle(attempt_id)
        if attempt_id in self._leases:
            self._watch(lease)

    def settle(self, attempt_id: str) -> None:
        """The process has hung up, or has given its lease back: look which.

        An offer that was not taken is given up: it cannot be taken any more.
        """
        lease = self._leases.get(attempt_id)
        if lease is None:
            return
        if read_ending(attempt_files.read(lease.directory, "exit.json")) is not None:
            self._end(lease)
            return
        if lease.taken:
            return
        try:
            lease.taken = self._has_taken(lease)
        except OSError:
            # A full disk: the process could still take it.
            self._reactor.call_later(_AGAIN, lambda: self.settle(attempt_id))
            return
        if lease.taken:
            self._reports.started(attempt_id, lease.process, lease.process, HOW)
            self._sample(lease)
        else:
            self._forget(lease)
            self._reports.never_ran(attempt_id, "it did not take its lease")

    def close(self) -> None:
        """Stop watching; the processes go on."""
        for lease in list(self._leases.values()):
            self._forget(lease)

    @staticmethod
    def _has_taken(lease: _InProcessLease) -> bool:
        try:
            if attempt_files.claim(lease.directory, {"broker": os.getpid()}):
                return False
        except FileNotFoundError:
            return False
        # One that cannot be read is being written by the process: ours would be whole.
        return "broker" not in (attempt_files.read(lease.directory, "claim") or {})

    def _know(self, attempt_id: str, process: Process) -> _InProcessLease:
        lease = _InProcessLease(attempt_id, str(self._runs / attempt_id), process)
        self._leases[attempt_id] = lease
        return lease

    def _watch(self, lease: _InProcessLease) -> None:
        if self._leases.get(lease.attempt_id) is not lease:
            return
        try:
            pidfd = os.pidfd_open(lease.process.pid)
        except ProcessLookupError:
            self._gone(lease)
            return
        except OSError:
            # A full table of descriptors is no exit.
            self._reactor.call_later(_AGAIN, lambda: self._watch(lease))
            return
        if not process_tree.is_alive(lease.process.pid, lease.process.start):
            os.close(pidfd)
            self._gone(lease)
            return
        lease.pidfd = pidfd
        self._reactor.watch(pidfd, lambda: self._gone(lease))
        if lease.taken:
            self._sample(lease)

    def _sample(self, lease: _InProcessLease) -> None:
        """Look at what it holds, again and again."""
        if self._leases.get(lease.attempt_id) is not lease or lease.pidfd is None:
            return
        pids = [lease.process.pid, *process_tree.descendants(lease.process.pid)]
        resident = sum(map(process_tree.resident_memory, pids))
        if abs(resident - lease.resident) >= _MATTERS:
            lease.resident = resident
            lease.now = process_tree.added_memory(pids)
            lease.peak = max(lease.peak, lease.now)
        busy = lease.pace.read(process_tree.processor_time(pids))
        self._reports.sampled(lease.attempt_id, lease.now, lease.peak, pids[:500], busy)
        pause = _SAMPLES[min(lease.sampled, len(_SAMPLES) - 1)]
        lease.sampled += 1
        self._reactor.call_later(pause, lambda: self._sample(lease))

    def _gone(self, lease: _InProcessLease) -> None:
        self.settle(lease.attempt_id)
        if lease.attempt_id in self._leases:
            self._end(lease)

    def _end(self, lease: _InProcessLease, note: str = "") -> None:
        self._forget(lease)
        found = read_ending(attempt_files.read(lease.directory, "exit.json")) or Ending(None)
        status = found.status
        if status is None:
            status = own_status(lease.directory, lease.process.pid)
        note = found.note or note or ("" if status is not None else "it ended without saying why")
        self._reports.ended(
            lease.attempt_id, Ending(status, system_peak=lease.peak or None, note=note)
        )

    def _forget(self, lease: _InProcessLease) -> None:
        del self._leases[lease.attempt_id]
        if lease.pidfd is not None:
            self._reactor.unwatch(lease.pidfd)
            os.close(lease.pidfd)
            lease.pidfd = None
