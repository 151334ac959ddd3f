"""Starts local workers, follows them through their keepers, and ends them.

What became of an attempt is read from its directory (see `attempt_files`), so that a later broker
finds the same truth. That an attempt has ended is believed of its keeper alone, or when none of its
processes is left.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from sublet.backends.backend import Ending, Reports
from sublet.backends.local.endings import how_started, own_status, read_ending
from sublet.backends.local.nurseries import Nurseries, NurseryKey
from sublet.backends.local.orphan import Orphan
from sublet.domain.job import Process
from sublet.formats import attempt_files, packets, worker_spec
from sublet.formats.worker_spec import WorkerSpec
from sublet.keeper import process_tree, subreaper, witness
from sublet.keeper.cgroup import Cgroup
from sublet.keeper.supervisor import GRACE
from sublet.keeper.time_limit import WHY
from sublet.reactor import Reactor

_PACKAGE = str(Path(__file__).parents[3])
_LOOK = 5.0
_LATE = 1.0
"""Seconds after its time is up in which a program is still not late."""
_LONGEST_START = 60.0
"""Seconds from an order to the report that its program runs; usually 10 ms."""
_TRIES = 50
"""Looks in a row, ever farther apart, after which a keeper or a record is not awaited any more."""


class _Attempt:
    """An attempt whose worker is watched by a keeper, or by us if the keeper was killed."""

    def __init__(self, attempt_id: str, directory: str, mark: str) -> None:
        self.attempt_id = attempt_id
        self.directory = directory
        self.mark = mark
        self.link: packets.Link | None = None
        self.keeper: Process | None = None
        self.worker: Process | None = None
        self.witness: Process | None = None
        self.stopped = ""
        self.grace = GRACE
        self.peak = 0
        self.wishes: dict[str, Any] = {}
        """What we have asked of the keeper that lasts: pause, duty, processors."""
        self.group: Cgroup | None = None
        self.nursery: NurseryKey | None = None
        """Where its worker was ordered."""
        self.orphan: Orphan | None = None
        self.time_limit: float | None = None
        """Seconds that it may run; its keeper sees to that."""
        self.overseen = False
        """Whether we look that the keeper does."""


class Launcher:
    """The workers of this machine, warm from nurseries or cold."""

    def __init__(self, reactor: Reactor, runs: Path, log: Path, reports: Reports) -> None:
        self.reactor = reactor
        self.runs = runs
        self.reports = reports
        self.nurseries = Nurseries(reactor, log, _PACKAGE, reports.nurseries_changed)
        self._log = log
        self._attempts: dict[str, _Attempt] = {}
        self._statuses: dict[int, int] = {}

    def start(
        self,
        attempt_id: str,
        record: bytes,
        spec: WorkerSpec,
        mark: str,
        streams: list[int],
        cold: str,
        key: NurseryKey | None,
    ) -> None:
        """Start a worker, warm if its nursery is. The streams stay the caller's.

        `record` is the broker's own note of the job, kept beside it for `sublet recover`.
        """
        directory = self.runs / attempt_id
        directory.mkdir(mode=0o700, exist_ok=True)
        (directory / "job.json").write_bytes(record)
        worker_spec.write(str(directory), spec)
        attempt = _Attempt(attempt_id, str(directory), mark)
        attempt.time_limit = spec.get("time")
        self._attempts[attempt_id] = attempt
        cold = cold or ("not a Python program" if key is None else self.nurseries.why_cold(key))
        try:
            if cold or key is None or not self._order(key, attempt, streams):
                self._start_cold(attempt, streams, cold or "its nursery has gone")
        except OSError:
            del self._attempts[attempt_id]
            raise

    def adopt(
        self,
        attempt_id: str,
        mark: str,
        rebooted: bool = False,
        keeper: Process | None = None,
        worker: Process | None = None,
        time_limit: float | None = None,
    ) -> None:
        """Take over an attempt that an earlier broker had started, or may have.

        `rebooted`: since then the machine was restarted, so none of its processes lives. `keeper`
        and `worker` as that broker knew them; None if it had not heard of them yet.
        """
        attempt = _Attempt(attempt_id, str(self.runs / attempt_id), mark)
        attempt.keeper, attempt.worker = keeper, worker
        attempt.time_limit = time_limit
        self._attempts[attempt_id] = attempt
        if rebooted:
            record = attempt_files.read(attempt.directory, "exit.json")
            lost = Ending(None, note="the machine was restarted", rebooted=True)
            self._ended(attempt, read_ending(record) or lost)
        else:
            if worker is not None:
                self._oversee(attempt)
            self._settle(attempt)

    def signal(self, attempt_id: str, number: int) -> None:
        """Send a signal to the program and what shares its process group."""
        attempt = self._attempts.get(attempt_id)
        if attempt is None:
            return
        if attempt.link is not None:
            self._send(attempt, {"signal": number})
            self._wake(attempt)
        elif attempt.worker is not None and process_tree.is_alive(
            attempt.worker.pid, attempt.worker.start
        ):
            with contextlib.suppress(OSError):
                os.killpg(attempt.worker.pid, number)

    def abandon(self, attempt_id: str, why: str) -> None:
        """End an attempt that has not begun, if there is time; `never_ran` is reported then."""
        if (attempt := self._attempts.get(attempt_id)) is not None:
            self.reactor.call_later(0.0, lambda: self._give_up(attempt, why))

    def stop(self, attempt_id: str, why: str, grace: float = GRACE) -> None:
        """Ask a tree to end; `ended` is reported when it has."""
        attempt = self._attempts.get(attempt_id)
        if attempt is None or attempt.stopped:
            return
        attempt.stopped, attempt.grace = why, grace
        if attempt.link is not None:
            self._send(attempt, {"stop": grace, "why": why}, "stop")
            self._wake(attempt)
            if attempt.worker is None:
                self.reactor.call_later(0.0, lambda: self._give_up(attempt, why))
        elif attempt.orphan is not None:
            attempt.orphan.stop(grace)

    def pause(self, attempt_id: str, on: bool) -> None:
        """Stop a tree where it is, or let it go on. Its time limit stands still meanwhile."""
        self._wish(attempt_id, "pause", on)

    def set_duty(self, attempt_id: str, share: float) -> None:
        """Let a tree run for a share of the time, above 0 and up to 1, in turns of 100 ms.

        For devices whose work no scheduler interrupts. Not kept up for a tree without a keeper.
        """
        if not 0 < share <= 1:
            raise ValueError(f"a share of the time is above 0 and at most 1, not {share}")
        self._wish(attempt_id, "duty", share)

    def confine(self, attempt_id: str, processors: tuple[int, ...]) -> None:
        """Keep a tree on some of its processors, or let it have all of them again."""
        self._wish(attempt_id, "processors", list(processors))

    def _wish(self, attempt_id: str, name: str, value: Any) -> None:
        attempt = self._attempts.get(attempt_id)
        if attempt is None:
            return
        attempt.wishes[name] = value
        if attempt.link is not None:
            self._send(attempt, {name: value}, name)
        elif attempt.orphan is not None:
            attempt.orphan.follow({name: value})

    def forget(self, attempt_id: str) -> None:
        """Remove the attempt's directory: all that matters of it is in the ledger."""
        directory = self.runs / attempt_id
        shutil.rmtree(directory, ignore_errors=True)

    def close(self) -> None:
        """End the nurseries; workers and their keepers go on."""
        self.nurseries.close()
        for attempt in self._attempts.values():
            self._unlink(attempt)

    def reap(self) -> None:
        """Collect our own children: cold keepers, nurseries, and orphans that fell to us."""
        for pid, status in subreaper.collect():
            self._reaped(pid, status)

    def _order(self, key: NurseryKey, attempt: _Attempt, streams: list[int]) -> bool:
        ours, theirs = packets.pair()
        order = {"start": attempt.directory}
        sent = self.nurseries.order(key, attempt.attempt_id, order, [theirs.fileno(), *streams])
        theirs.close()
        if sent:
            attempt.nursery = key
            self._link(attempt, ours)
            self._expect_start(attempt)
        else:
            ours.close()
        return sent

    def _start_cold(self, attempt: _Attempt, streams: list[int], why: str) -> None:
        how = f"cold: {why}"
        ours, theirs = packets.pair()
        boot = (
            "import sys; sys.path.insert(0, sys.argv.pop(1)); "
            "from sublet.keeper import keeper; sys.path.pop(0); keeper.main()"
        )
        numbers = [theirs.fileno(), *streams]
        command = [sys.executable, "-S", "-E", "-c", boot, _PACKAGE, attempt.directory, how]
        try:
            with self._log.open("ab") as log:
                subprocess.Popen(
                    [*command, *map(str, numbers)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=numbers,
                    cwd="/",
                )
        finally:
            theirs.close()
        self._link(attempt, ours)
        self._expect_start(attempt)

    def _expect_start(self, attempt: _Attempt, waited: float = 0.0) -> None:
        """See to it that an attempt begins, or that another one can."""
        self.reactor.call_later(_LOOK, lambda: self._look_for_start(attempt, waited + _LOOK))

    def _look_for_start(self, attempt: _Attempt, waited: float) -> None:
        if (
            self._attempts.get(attempt.attempt_id) is not attempt
            or attempt.worker is not None
            or attempt.link is None
        ):
            return
        stopped = attempt.nursery is not None and self.nurseries.is_stopped(attempt.nursery)
        if not stopped and waited < _LONGEST_START:
            self._expect_start(attempt, waited)
            return
        if attempt.nursery is not None:
            self.nurseries.give_up(attempt.nursery, stopped)
        if self._give_up(attempt, "it did not begin in time"):
            return
        # Its keeper has come and gets no further; without it, the attempt's directory says more.
        owner = _owner(attempt.directory)
        if owner is not None:
            process_tree.send_exactly({owner.pid: owner.start}, signal.SIGKILL)
        self._expect_start(attempt, waited)

    def _give_up(self, attempt: _Attempt, why: str) -> bool:
        """End an attempt that nobody has claimed; False if it may begin any moment."""
        if self._attempts.get(attempt.attempt_id) is not attempt or attempt.worker is not None:
            return False
        try:
            if not attempt_files.claim(attempt.directory, {"broker": os.getpid()}):
                return False
        except OSError:
            return False
        if attempt.nursery is not None and self.nurseries.is_stopped(attempt.nursery):
            # It has the program's streams, and would keep them open.
            self.nurseries.give_up(attempt.nursery, stopped=True)
        attempt.nursery = None  # Not that one's failure.
        self._unlink(attempt)
        self._never_ran(attempt, why)
        return True

    def _link(self, attempt: _Attempt, sock: socket.socket) -> None:
        attempt.link = packets.Link(sock)
        self.reactor.watch(sock, lambda: self._receive(attempt))

    def _unlink(self, attempt: _Attempt) -> None:
        if attempt.link is not None:
            self.reactor.unwatch(attempt.link.sock)
            attempt.link.close()
            attempt.link = None

    def _send(self, attempt: _Attempt, packet: dict[str, Any], slot: str = "") -> None:
        """Send a packet to the keeper, now or when it reads again; of one slot only the last."""
        if attempt.link is not None:
            attempt.link.put(packet, slot)
            self._write(attempt)

    def _write(self, attempt: _Attempt) -> None:
        if attempt.link is not None:
            attempt.link.flush()
            waits = attempt.link.waiting
            self.reactor.when_writable(
                attempt.link.sock, (lambda: self._write(attempt)) if waits else None
            )

    @staticmethod
    def _wake(attempt: _Attempt) -> None:
        """Wake a keeper that somebody has stopped: what it was sent cannot wait."""
        if attempt.keeper is not None:
            process_tree.send_exactly({attempt.keeper.pid: attempt.keeper.start}, signal.SIGCONT)

    def _receive(self, attempt: _Attempt) -> None:
        assert attempt.link is not None
        received = attempt.link.receive()
        if received is None:
            self._unlink(attempt)
            self._settle(attempt)
            return
        packet, descriptors = received
        packets.close(descriptors)
        match packet.get("event"):
            case "started" | "kept":
                self._know(attempt, packet)
            case "sampled":
                self._sampled(attempt, packet)
            case "ended" if (ending := read_ending(packet)) is not None:
                self._ended(attempt, ending)

    def _sampled(self, attempt: _Attempt, packet: dict[str, Any]) -> None:
        now, peak, pids, busy = (packet.get(name) for name in ("now", "peak", "pids", "busy"))
        if type(now) is int and type(peak) is int and isinstance(pids, list):
            attempt.peak = peak
            self.reports.sampled(attempt.attempt_id, now, peak, pids, float(busy or 0.0))

    def _know(self, attempt: _Attempt, who: dict[str, Any]) -> bool:
        """We have heard who the worker is; False if that makes no sense."""
        if not attempt_files.is_process(who) or not attempt_files.is_process(who.get("keeper")):
            return False
        first = attempt.worker is None
        attempt.worker = attempt.worker or Process(who["pid"], who["start"])
        attempt.keeper = attempt.keeper or Process(who["keeper"]["pid"], who["keeper"]["start"])
        attempt.group = Cgroup.of(who.get("group"), attempt.keeper.pid, attempt.keeper.start)
        if attempt_files.is_process(behind := who.get("witness", {})):
            attempt.witness = Process(behind["pid"], behind["start"])
        if attempt.nursery is not None:
            self.nurseries.born(attempt.nursery)
        if first:
            self.reports.started(
                attempt.attempt_id, attempt.keeper, attempt.worker, str(who.get("how"))
            )
        if attempt.stopped:
            self._send(attempt, {"stop": attempt.grace, "why": attempt.stopped}, "stop")
        self._oversee(attempt)
        return True

    def _oversee(self, attempt: _Attempt) -> None:
        """See to it that the keeper ends the program in time, though somebody may stop it."""
        if attempt.time_limit is None or attempt.overseen:
            return
        attempt.overseen = True
        now = time.monotonic()
        began = (attempt_files.read(attempt.directory, "worker.json") or {}).get("began", now)
        ran = now - began if attempt_files.is_number(began, 0, now) else 0.0
        left = max(0.0, attempt.time_limit - ran)
        self.reactor.call_later(left + _LATE, lambda: self._wake_late(attempt))

    def _wake_late(self, attempt: _Attempt) -> None:
        """The time may be up. Only the keeper knows, because pauses do not count."""
        if self._attempts.get(attempt.attempt_id) is attempt:
            self._wake(attempt)
            self.reactor.call_later(_LOOK, lambda: self._wake_late(attempt))

    def _ended(self, attempt: _Attempt, ending: Ending) -> None:
        self._unlink(attempt)
        if not ending.stopped and not attempt_files.has_run(attempt.directory):
            self._never_ran(attempt, "its worker ended before its program began")
            return
        self._forget(attempt)
        how = how_started(attempt.directory)
        self.reports.ended(attempt.attempt_id, replace(ending, how=how))

    def _settle(self, attempt: _Attempt, tries: int = 0) -> None:
        """No keeper is linked to this attempt: find it, or read how the attempt stands."""
        try:
            if attempt.keeper is None and not self._is_claimed(attempt):
                return
        except OSError:  # A full disk: it could still be claimed.
            self._settle_later(attempt, tries)
            return
        owner = attempt.keeper or _owner(attempt.directory)
        if owner is None and tries < _TRIES:
            self._settle_later(attempt, tries)  # It is being written.
            return
        if owner is not None and process_tree.is_alive(owner.pid, owner.start):
            # It does not listen yet, or dies just now, or cannot be reached any more.
            if not self._connect(attempt, owner):
                if attempt.stopped and tries > _TRIES:
                    process_tree.send_exactly({owner.pid: owner.start}, signal.SIGTERM)
                self._settle_later(attempt, tries)
            return
        who = attempt_files.read(attempt.directory, "worker.json")
        if who is not None:
            self._know(attempt, who)
        if attempt.worker is None:
            # The keeper says who its worker is before it lets it go.
            self._never_ran(attempt, "its keeper was killed")
            return
        ending = read_ending(attempt_files.read(attempt.directory, "exit.json"))
        worker = attempt.worker
        if ending is not None and not process_tree.is_alive(worker.pid, worker.start):
            spec = worker_spec.read(attempt.directory)
            if spec is not None and spec.get("leave_children") is True:
                self._ended(attempt, ending)
                return
        self._watch_orphan(attempt)

    def _is_claimed(self, attempt: _Attempt) -> bool:
        """Whether a keeper has come for an attempt of which we know nothing; if not, it is over."""
        directory = attempt.directory
        if not os.path.isdir(directory) or attempt_files.claim(directory, {"broker": os.getpid()}):
            self._never_ran(attempt, "its keeper never came")
            return False
        if "broker" in (attempt_files.read(directory, "claim") or {}):
            self._never_ran(attempt, "an earlier broker had given it up")
            return False
        return True

    def _settle_later(self, attempt: _Attempt, tries: int) -> None:
        def again() -> None:
            if (
                self._attempts.get(attempt.attempt_id) is attempt
                and attempt.link is None
                and attempt.orphan is None
            ):
                self._settle(attempt, tries + 1)

        self.reactor.call_later(min(1.0, 0.02 * 1.1**tries), again)

    def _connect(self, attempt: _Attempt, owner: Process) -> bool:
        """Find the keeper through its socket; False if that is not its own, or it does not listen
        at the moment."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.setblocking(False)
        try:
            directory = os.open(attempt.directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                link.connect(f"/proc/self/fd/{directory}/keeper.sock")
            finally:
                os.close(directory)
            if packets.peer(link) != (owner.pid, os.getuid()):
                raise PermissionError("another process listens there")
        except OSError:
            link.close()
            return False
        self._link(attempt, link)
        for name, value in attempt.wishes.items():
            self._send(attempt, {name: value}, name)
        if attempt.stopped:
            self._send(attempt, {"stop": attempt.grace, "why": attempt.stopped}, "stop")
        return True

    def _never_ran(self, attempt: _Attempt, why: str) -> None:
        self._forget(attempt)
        if attempt.nursery is not None and not attempt.stopped:
            self.nurseries.birth_failed(attempt.nursery)
        self.reports.never_ran(attempt.attempt_id, why)

    def _forget(self, attempt: _Attempt) -> None:
        if attempt.orphan is not None:
            attempt.orphan.close()
        del self._attempts[attempt.attempt_id]
        self.nurseries.ended(attempt.attempt_id)

    def _watch_orphan(self, attempt: _Attempt) -> None:
        """The keeper is gone: see to the rest of its tree ourselves."""
        assert attempt.worker is not None
        if attempt.witness is not None and process_tree.name(attempt.witness.pid) != witness.NAME:
            attempt.witness = None
        attempt.orphan = Orphan(
            self.reactor,
            attempt.directory,
            attempt.worker,
            attempt.witness,
            attempt.mark,
            attempt.group,
            late=lambda grace: self.stop(attempt.attempt_id, WHY, grace),
            gone=lambda: self._orphan_gone(attempt),
        )
        attempt.orphan.follow(attempt.wishes)
        if attempt.stopped:
            # The keeper was killed while it ended the tree.
            attempt.orphan.stop(attempt.grace)
        attempt.orphan.watch()

    def _orphan_gone(self, attempt: _Attempt, tries: int = 0) -> None:
        """No process of the tree is left. What is known of its end?"""
        worker = attempt.worker
        assert worker is not None
        if self._attempts.get(attempt.attempt_id) is not attempt:
            return
        ending = read_ending(attempt_files.read(attempt.directory, "exit.json"))
        if ending is None and not attempt_files.has_run(attempt.directory):
            self._never_ran(attempt, "its keeper was killed")
            return
        # It may have ended before we knew it for an orphan, and wait to be collected.
        self.reap()
        status = self._statuses.pop(worker.pid, None)
        if status is None:
            status = attempt_files.read_reaped(attempt.directory, worker.pid)
        if status is None and ending is not None:
            status = ending.status
        behind = attempt.witness
        if status is None and behind is not None and tries < _TRIES:
            if process_tree.is_alive(behind.pid, behind.start):
                # It writes it down just now.
                self.reactor.call_later(0.05, lambda: self._orphan_gone(attempt, tries + 1))
                return
            status = attempt_files.read_reaped(attempt.directory, worker.pid)
        if status is None:
            status = own_status(attempt.directory, worker.pid)
        found = ending or Ending(status, system_peak=attempt.peak or None)
        stopped = found.stopped or attempt.stopped
        self._ended(attempt, replace(found, status=status, stopped=stopped))

    def _reaped(self, pid: int, status: int) -> None:
        """Note the status of a worker that fell to us, or that a nursery has gone."""
        self.nurseries.reaped(pid)
        for attempt in self._attempts.values():
            if attempt.worker is not None and attempt.worker.pid == pid:
                self._statuses[pid] = status
                attempt_files.write_reaped(attempt.directory, pid, status)


def _owner(directory: str) -> Process | None:
    """The keeper that has claimed an attempt; None if it cannot be read, or not yet.

    One of an earlier boot is no process of this one, whatever has its number.
    """
    claim = attempt_files.read(directory, "claim") or {}
    if not attempt_files.is_process(claim):
        return None
    return Process(claim["pid"], claim["start"] if claim.get("boot") == process_tree.boot() else -1)
