"""The broker's side of local workers: starts them, hears of them, ends them.

It reports to the broker through `Reports` and keeps no lease. An attempt's fate is read from its
directory (see `attempt_files`), so that a broker that comes later finds the same truth. That an
attempt has ended is believed of its keeper alone, or when none of its processes is left.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from sublet.backends.local.nurseries import Nurseries, NurseryKey
from sublet.backends.local.orphan import Orphan
from sublet.backends.local.reports import Ending, Reports, own_status, read_ending
from sublet.domain.job import Process
from sublet.formats import attempt_files, packets
from sublet.keeper import keeper, process_tree, subreaper, witness
from sublet.keeper.cgroup import Cgroup
from sublet.keeper.time_limit import WHY
from sublet.reactor import Reactor

_PACKAGE = str(Path(__file__).parents[3])
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals by which users end programs."""
_LOOK = 5.0
_LONGEST_START = 60.0
"""Seconds from an order to the word that its program runs; it takes 10 ms, if nobody hangs."""
_TRIES = 50
"""Looks in a row, ever farther apart, after which a keeper or a record is not awaited any more."""


class _Kept:
    """An attempt whose worker is watched by a keeper, or by us if the keeper was killed."""

    def __init__(self, run: str, directory: str, mark: str) -> None:
        self.run = run
        self.directory = directory
        self.mark = mark
        self.link: packets.Link | None = None
        self.keeper: Process | None = None
        self.worker: Process | None = None
        self.witness: Process | None = None
        self.stopped = ""
        self.grace = keeper.GRACE
        self.peak = 0
        self.wishes: dict[str, Any] = {}
        """What we have asked of the keeper that lasts: pause, duty, processors."""
        self.group: Cgroup | None = None
        self.nursery: NurseryKey | None = None
        """Where its worker was ordered."""
        self.orphan: Orphan | None = None


class Launcher:
    """All workers of this machine."""

    def __init__(self, hub: Reactor, runs: Path, log: Path, reports: Reports) -> None:
        self.hub = hub
        self.runs = runs
        self.reports = reports
        self.nurseries = Nurseries(hub, log, _PACKAGE, reports.nurseries_changed)
        self._log = log
        self._kept: dict[str, _Kept] = {}
        self._statuses: dict[int, int] = {}

    def start(
        self,
        run: str,
        record: bytes,
        spec: dict[str, Any],
        mark: str,
        streams: list[int],
        cold: str,
        key: NurseryKey | None,
    ) -> None:
        """Start a worker, warm if its nursery is. The streams stay the caller's.

        `record` is the broker's own note of the job, kept beside it for `sublet recover`.
        """
        directory = self.runs / run
        directory.mkdir(mode=0o700, exist_ok=True)
        (directory / "job.json").write_bytes(record)
        (directory / "spec.json").write_text(json.dumps(spec))
        kept = _Kept(run, str(directory), mark)
        self._kept[run] = kept
        cold = cold or ("not a Python program" if key is None else self.nurseries.why_cold(key))
        try:
            if cold or key is None or not self._order(key, kept, streams):
                self._start_cold(kept, streams, cold or "its nursery has gone")
        except OSError:
            del self._kept[run]
            raise

    def adopt(
        self,
        run: str,
        mark: str,
        rebooted: bool = False,
        keeper: Process | None = None,
        worker: Process | None = None,
    ) -> None:
        """Take over an attempt that an earlier broker had started, or may have.

        `rebooted`: since then the machine was restarted, so none of its processes lives. `keeper`
        and `worker` as that broker knew them; None if it had not heard of them yet.
        """
        kept = _Kept(run, str(self.runs / run), mark)
        kept.keeper, kept.worker = keeper, worker
        self._kept[run] = kept
        if rebooted:
            record = attempt_files.read(kept.directory, "exit.json")
            lost = Ending(None, note="the machine was restarted", rebooted=True)
            self._ended(kept, read_ending(record) or lost)
        else:
            self._settle(kept)

    def signal(self, run: str, number: int) -> None:
        """Send a signal to the program and what shares its process group."""
        kept = self._kept.get(run)
        if kept is None:
            return
        if kept.link is not None:
            self._tell(kept, {"signal": number})
            self._wake(kept)
        elif kept.worker is not None and process_tree.is_alive(kept.worker.pid, kept.worker.start):
            with contextlib.suppress(OSError):
                os.killpg(kept.worker.pid, number)

    def give_up(self, run: str, why: str) -> None:
        """End an attempt that has not begun, if there is time; `never_ran` is reported then."""
        if (kept := self._kept.get(run)) is not None:
            self.hub.later(0.0, lambda: self._give_up(kept, why))

    def stop(self, run: str, why: str, grace: float = keeper.GRACE) -> None:
        """Ask a tree to end; `ended` is reported when it has."""
        kept = self._kept.get(run)
        if kept is None or kept.stopped:
            return
        kept.stopped, kept.grace = why, grace
        if kept.link is not None:
            self._tell(kept, {"stop": grace, "why": why}, "stop")
            self._wake(kept)
            if kept.worker is None:
                self.hub.later(0.0, lambda: self._give_up(kept, why))
        elif kept.orphan is not None:
            kept.orphan.stop(grace)

    def pause(self, run: str, on: bool) -> None:
        """Stop a tree where it is, or let it go on. Its time limit stands still meanwhile."""
        self._wish(run, "pause", on)

    def duty(self, run: str, share: float) -> None:
        """Let a tree run for a share of the time, above 0 and up to 1, in turns of 100 ms.

        For devices whose work no scheduler interrupts. Not kept up for a tree without a keeper.
        """
        if not 0 < share <= 1:
            raise ValueError(f"a share of the time is above 0 and at most 1, not {share}")
        self._wish(run, "duty", share)

    def confine(self, run: str, processors: tuple[int, ...]) -> None:
        """Keep a tree on some of its processors, or let it have all of them again."""
        self._wish(run, "processors", list(processors))

    def _wish(self, run: str, name: str, value: Any) -> None:
        kept = self._kept.get(run)
        if kept is None:
            return
        kept.wishes[name] = value
        if kept.link is not None:
            self._tell(kept, {name: value}, name)
        elif kept.orphan is not None:
            kept.orphan.hear({name: value})

    def forget(self, run: str) -> None:
        """Remove the attempt's directory: all that matters of it is in the ledger."""
        directory = self.runs / run
        shutil.rmtree(directory, ignore_errors=True)

    def close(self) -> None:
        """End the nurseries; workers and their keepers go on."""
        self.nurseries.close()
        for kept in self._kept.values():
            self._unlink(kept)

    def reap(self) -> None:
        """Collect our own children: cold keepers, nurseries, and orphans that fell to us."""
        for pid, status in subreaper.collect():
            self._reaped(pid, status)

    def _order(self, key: NurseryKey, kept: _Kept, streams: list[int]) -> bool:
        ours, theirs = packets.pair()
        order = {"start": kept.directory}
        sent = self.nurseries.order(key, order, [theirs.fileno(), *streams])
        theirs.close()
        if sent:
            kept.nursery = key
            self._link(kept, ours)
            self._expect_start(kept)
        else:
            ours.close()
        return sent

    def _start_cold(self, kept: _Kept, streams: list[int], why: str) -> None:
        how = f"cold: {why}"
        ours, theirs = packets.pair()
        boot = (
            "import sys; sys.path.insert(0, sys.argv.pop(1)); "
            "from sublet.keeper import keeper; sys.path.pop(0); keeper.main()"
        )
        numbers = [theirs.fileno(), *streams]
        command = [sys.executable, "-S", "-E", "-c", boot, _PACKAGE, kept.directory, how]
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
        self._link(kept, ours)
        self._expect_start(kept)

    def _expect_start(self, kept: _Kept, waited: float = 0.0) -> None:
        """See to it that an attempt begins, or that another one can."""
        self.hub.later(_LOOK, lambda: self._look_for_start(kept, waited + _LOOK))

    def _look_for_start(self, kept: _Kept, waited: float) -> None:
        if self._kept.get(kept.run) is not kept or kept.worker is not None or kept.link is None:
            return
        stopped = kept.nursery is not None and self.nurseries.is_stopped(kept.nursery)
        if not stopped and waited < _LONGEST_START:
            self._expect_start(kept, waited)
            return
        if kept.nursery is not None:
            self.nurseries.give_up(kept.nursery, stopped)
        if self._give_up(kept, "it did not begin in time"):
            return
        # Its keeper has come and gets no further; without it, the attempt's directory tells more.
        owner = _owner(kept.directory)
        if owner is not None:
            process_tree.send_exactly({owner.pid: owner.start}, signal.SIGKILL)
        self._expect_start(kept, waited)

    def _give_up(self, kept: _Kept, why: str) -> bool:
        """End an attempt that nobody has claimed; False if it may begin any moment."""
        if self._kept.get(kept.run) is not kept or kept.worker is not None:
            return False
        try:
            if not attempt_files.claim(kept.directory, {"broker": os.getpid()}):
                return False
        except OSError:
            return False
        if kept.nursery is not None and self.nurseries.is_stopped(kept.nursery):
            # It has the program's streams, and would keep them open.
            self.nurseries.give_up(kept.nursery, stopped=True)
        kept.nursery = None  # Not that one's failure.
        self._unlink(kept)
        self._never_ran(kept, why)
        return True

    def _link(self, kept: _Kept, sock: socket.socket) -> None:
        kept.link = packets.Link(sock)
        self.hub.watch(sock, lambda: self._hear(kept))

    def _unlink(self, kept: _Kept) -> None:
        if kept.link is not None:
            self.hub.unwatch(kept.link.sock)
            kept.link.close()
            kept.link = None

    def _tell(self, kept: _Kept, packet: dict[str, Any], slot: str = "") -> None:
        """Say something to the keeper, now or when it listens again."""
        if kept.link is not None:
            kept.link.put(packet, slot)
            self._write(kept)

    def _write(self, kept: _Kept) -> None:
        if kept.link is not None:
            kept.link.flush()
            waits = kept.link.waiting
            self.hub.when_writable(kept.link.sock, (lambda: self._write(kept)) if waits else None)

    @staticmethod
    def _wake(kept: _Kept) -> None:
        """What a keeper is told that cannot wait wakes it, if somebody has stopped it."""
        if kept.keeper is not None:
            process_tree.send_exactly({kept.keeper.pid: kept.keeper.start}, signal.SIGCONT)

    def _hear(self, kept: _Kept) -> None:
        assert kept.link is not None
        heard = kept.link.receive()
        if heard is None:
            self._unlink(kept)
            self._settle(kept)
            return
        packet, descriptors = heard
        packets.close(descriptors)
        match packet.get("event"):
            case "started" | "kept":
                self._know(kept, packet)
            case "sampled":
                self._sampled(kept, packet)
            case "ended" if (ending := read_ending(packet)) is not None:
                self._ended(kept, ending)

    def _sampled(self, kept: _Kept, packet: dict[str, Any]) -> None:
        now, peak, pids, busy = (packet.get(name) for name in ("now", "peak", "pids", "busy"))
        if type(now) is int and type(peak) is int and isinstance(pids, list):
            kept.peak = peak
            self.reports.sampled(kept.run, now, peak, pids, float(busy or 0.0))

    def _know(self, kept: _Kept, who: dict[str, Any]) -> bool:
        """We have heard who the worker is; False if that makes no sense."""
        if not attempt_files.is_process(who) or not attempt_files.is_process(who.get("keeper")):
            return False
        first = kept.worker is None
        kept.worker = kept.worker or Process(who["pid"], who["start"])
        kept.keeper = kept.keeper or Process(who["keeper"]["pid"], who["keeper"]["start"])
        kept.group = Cgroup.of(who.get("group"), kept.keeper.pid, kept.keeper.start)
        if attempt_files.is_process(behind := who.get("witness", {})):
            kept.witness = Process(behind["pid"], behind["start"])
        if kept.nursery is not None:
            self.nurseries.born(kept.nursery)
        if first:
            self.reports.started(kept.run, kept.keeper, kept.worker, str(who.get("how")))
        if kept.stopped:
            self._tell(kept, {"stop": kept.grace, "why": kept.stopped}, "stop")
        return True

    def _ended(self, kept: _Kept, ending: Ending) -> None:
        self._unlink(kept)
        self._forget(kept)
        self.reports.ended(kept.run, ending)

    def _settle(self, kept: _Kept, tries: int = 0) -> None:
        """No keeper is linked to this attempt: find it, or read how the attempt stands."""
        try:
            if kept.keeper is None and not self._is_claimed(kept):
                return
        except OSError:  # A full disk: it could still be claimed.
            self._settle_later(kept, tries)
            return
        owner = kept.keeper or _owner(kept.directory)
        if owner is None and tries < _TRIES:
            self._settle_later(kept, tries)  # It is being written.
            return
        if owner is not None and process_tree.is_alive(owner.pid, owner.start):
            # It does not listen yet, or dies just now, or cannot be reached any more.
            if not self._connect(kept, owner):
                if kept.stopped and tries > _TRIES:
                    process_tree.send_exactly({owner.pid: owner.start}, signal.SIGTERM)
                self._settle_later(kept, tries)
            return
        who = attempt_files.read(kept.directory, "worker.json")
        if who is not None:
            self._know(kept, who)
        if kept.worker is None:
            # The keeper says who its worker is before it lets it go.
            self._never_ran(kept, "its keeper was killed")
            return
        ending = read_ending(attempt_files.read(kept.directory, "exit.json"))
        worker = kept.worker
        if ending is not None and not process_tree.is_alive(worker.pid, worker.start):
            spec = attempt_files.read(kept.directory, "spec.json") or {}
            if spec.get("leave_children") is True:
                self._ended(kept, ending)
                return
        self._watch_orphan(kept)

    def _is_claimed(self, kept: _Kept) -> bool:
        """Whether a keeper has come for an attempt of which we know nothing; if not, it is over."""
        directory = kept.directory
        if not os.path.isdir(directory) or attempt_files.claim(directory, {"broker": os.getpid()}):
            self._never_ran(kept, "its keeper never came")
            return False
        if "broker" in (attempt_files.read(directory, "claim") or {}):
            self._never_ran(kept, "an earlier broker had given it up")
            return False
        return True

    def _settle_later(self, kept: _Kept, tries: int) -> None:
        def again() -> None:
            if self._kept.get(kept.run) is kept and kept.link is None and kept.orphan is None:
                self._settle(kept, tries + 1)

        self.hub.later(min(1.0, 0.02 * 1.1**tries), again)

    def _connect(self, kept: _Kept, owner: Process) -> bool:
        """Find the keeper through its socket; False if that is not its own, or it does not listen
        at the moment."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.setblocking(False)
        try:
            directory = os.open(kept.directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                link.connect(f"/proc/self/fd/{directory}/keeper.sock")
            finally:
                os.close(directory)
            if packets.peer(link) != (owner.pid, os.getuid()):
                raise PermissionError("another process listens there")
        except OSError:
            link.close()
            return False
        self._link(kept, link)
        for name, value in kept.wishes.items():
            self._tell(kept, {name: value}, name)
        if kept.stopped:
            self._tell(kept, {"stop": kept.grace, "why": kept.stopped}, "stop")
        return True

    def _never_ran(self, kept: _Kept, why: str) -> None:
        self._forget(kept)
        if kept.nursery is not None and not kept.stopped:
            self.nurseries.birth_failed(kept.nursery)
        self.reports.never_ran(kept.run, why)

    def _forget(self, kept: _Kept) -> None:
        if kept.orphan is not None:
            kept.orphan.close()
        del self._kept[kept.run]

    def _watch_orphan(self, kept: _Kept) -> None:
        """The keeper is gone: see to the rest of its tree ourselves."""
        assert kept.worker is not None
        if kept.witness is not None and process_tree.name(kept.witness.pid) != witness.NAME:
            kept.witness = None
        kept.orphan = Orphan(
            self.hub,
            kept.directory,
            kept.worker,
            kept.witness,
            kept.mark,
            kept.group,
            late=lambda grace: self.stop(kept.run, WHY, grace),
            gone=lambda: self._orphan_gone(kept),
        )
        kept.orphan.hear(kept.wishes)
        if kept.stopped:
            # The keeper was killed while it ended the tree.
            kept.orphan.stop(kept.grace)
        kept.orphan.watch()

    def _orphan_gone(self, kept: _Kept, tries: int = 0) -> None:
        """No process of the tree is left. What is known of its end?"""
        worker = kept.worker
        assert worker is not None
        if self._kept.get(kept.run) is not kept:
            return
        ending = read_ending(attempt_files.read(kept.directory, "exit.json"))
        if (
            ending is None
            and os.path.isdir(kept.directory)
            and not attempt_files.has_run(kept.directory)
        ):
            self._never_ran(kept, "its keeper was killed")
            return
        # It may have ended before we knew it for an orphan, and wait to be collected.
        self.reap()
        status = self._statuses.pop(worker.pid, None)
        if status is None:
            status = attempt_files.read_reaped(kept.directory, worker.pid)
        if status is None and ending is not None:
            status = ending.status
        behind = kept.witness
        if status is None and behind is not None and tries < _TRIES:
            if process_tree.is_alive(behind.pid, behind.start):
                # It writes it down just now.
                self.hub.later(0.05, lambda: self._orphan_gone(kept, tries + 1))
                return
            status = attempt_files.read_reaped(kept.directory, worker.pid)
        if status is None:
            status = own_status(kept.directory, worker.pid)
        found = ending or Ending(status, system_peak=kept.peak or None)
        stopped = found.stopped or kept.stopped
        self._ended(kept, replace(found, status=status, stopped=stopped))

    def _reaped(self, pid: int, status: int) -> None:
        """Note the status of a worker that fell to us."""
        for kept in self._kept.values():
            if kept.worker is not None and kept.worker.pid == pid:
                self._statuses[pid] = status
                attempt_files.write_reaped(kept.directory, pid, status)


def _owner(directory: str) -> Process | None:
    """The keeper that has claimed an attempt; None if it cannot be read, or not yet.

    One of an earlier boot is no process of this one, whatever has its number.
    """
    claim = attempt_files.read(directory, "claim") or {}
    if not attempt_files.is_process(claim):
        return None
    return Process(claim["pid"], claim["start"] if claim.get("boot") == process_tree.boot() else -1)
