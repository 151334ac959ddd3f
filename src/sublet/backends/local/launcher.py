"""The broker's side of local workers: starts them, hears of them, ends them.

It reports to the broker through `Reports` and keeps no lease. An attempt's fate is read from its
directory (see `records`), so that a broker that comes later finds the same truth.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from sublet.backends.local import keeper, packets, parent, records, tree
from sublet.backends.local.cgroup import Cgroup
from sublet.backends.local.nurseries import Nurseries, NurseryKey
from sublet.backends.local.orphan import Orphan
from sublet.backends.local.reports import Ending, Reports, own_status
from sublet.backends.local.runtime import WHY
from sublet.channel.peers import is_ours
from sublet.domain.job import Process
from sublet.hub import Hub

_PACKAGE = str(Path(__file__).parents[3])


class _Kept:
    """An attempt whose worker is watched by a keeper, or by us if the keeper was killed."""

    def __init__(self, run: str, directory: str, mark: str) -> None:
        self.run = run
        self.directory = directory
        self.mark = mark
        self.link: socket.socket | None = None
        self.keeper: Process | None = None
        self.worker: Process | None = None
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

    def __init__(self, hub: Hub, runs: Path, log: Path, reports: Reports) -> None:
        self.hub = hub
        self.runs = runs
        self.reports = reports
        self.nurseries = Nurseries(hub, log, _PACKAGE, self._reaped, reports.nurseries_changed)
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

    def adopt(self, run: str, mark: str, rebooted: bool = False) -> None:
        """Take over an attempt that an earlier broker had started, or may have.

        `rebooted`: since then the machine was restarted, so none of its processes lives.
        """
        kept = _Kept(run, str(self.runs / run), mark)
        self._kept[run] = kept
        if rebooted and records.read(kept.directory, "exit.json") is None:
            self._ended(kept, {"status": None, "note": "the machine was restarted"})
        else:
            self._settle(kept)

    def signal(self, run: str, number: int) -> None:
        """Send a signal to the program and what shares its process group."""
        kept = self._kept.get(run)
        if kept is None:
            return
        if kept.link is not None:
            packets.send(kept.link, {"signal": number})
        elif kept.worker is not None and tree.is_alive(kept.worker.pid, kept.worker.start):
            os.killpg(kept.worker.pid, number)

    def stop(self, run: str, why: str, grace: float = keeper.GRACE) -> None:
        """Ask a tree to end; `ended` is reported when it has."""
        kept = self._kept.get(run)
        if kept is None or kept.stopped:
            return
        kept.stopped, kept.grace = why, grace
        if kept.link is not None:
            packets.send(kept.link, {"stop": grace, "why": why})
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
            packets.send(kept.link, {name: value})
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
        for pid, status in parent.collect():
            self._reaped(pid, status)

    def _order(self, key: NurseryKey, kept: _Kept, streams: list[int]) -> bool:
        ours, theirs = packets.pair()
        order = {"start": kept.directory}
        sent = self.nurseries.order(key, order, [theirs.fileno(), *streams])
        theirs.close()
        if sent:
            kept.nursery = key
            self._link(kept, ours)
        else:
            ours.close()
        return sent

    def _start_cold(self, kept: _Kept, streams: list[int], why: str) -> None:
        how = f"cold: {why}"
        ours, theirs = packets.pair()
        boot = (
            "import sys; sys.path.insert(0, sys.argv.pop(1)); "
            "from sublet.backends.local import keeper; sys.path.pop(0); keeper.main()"
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

    def _link(self, kept: _Kept, link: socket.socket) -> None:
        kept.link = link
        self.hub.watch(link, lambda: self._hear(kept))

    def _unlink(self, kept: _Kept) -> None:
        if kept.link is not None:
            self.hub.unwatch(kept.link)
            kept.link.close()
            kept.link = None

    def _hear(self, kept: _Kept) -> None:
        assert kept.link is not None
        heard = packets.receive(kept.link)
        if heard is None:
            self._unlink(kept)
            self._settle(kept)
            return
        packet, _ = heard
        match packet.get("event"):
            case "started" | "kept":
                self._know(kept, packet)
            case "sampled":
                kept.peak = packet["peak"]
                told = (packet["now"], packet["peak"], packet["pids"], packet["busy"])
                self.reports.sampled(kept.run, *told)
            case "ended":
                self._ended(kept, packet)

    def _know(self, kept: _Kept, packet: dict[str, Any]) -> None:
        """We have heard who the worker is."""
        first = kept.worker is None
        if packet.get("group"):
            kept.group = Cgroup(packet["group"])
        kept.worker = Process(packet["pid"], packet["start"] or 0)
        kept.keeper = Process(packet["keeper"]["pid"], packet["keeper"]["start"] or 0)
        if kept.nursery is not None:
            self.nurseries.born(kept.nursery)
        if first:
            self.reports.started(kept.run, kept.keeper, kept.worker, packet["how"])
        if kept.stopped and kept.link is not None:
            packets.send(kept.link, {"stop": kept.grace, "why": kept.stopped})

    def _ended(self, kept: _Kept, record: dict[str, Any]) -> None:
        self._unlink(kept)
        self._forget(kept)
        self.reports.ended(
            kept.run,
            Ending(
                record["status"],
                record.get("stopped", ""),
                record.get("system_peak") or None,
                record.get("ran"),
                record.get("note", ""),
                tuple(record.get("left", ())),
            ),
        )

    def _settle(self, kept: _Kept) -> None:
        """No keeper is linked to this attempt: read from its directory how it stands."""
        directory = kept.directory
        record = records.read(directory, "exit.json")
        if record is not None:
            if kept.worker is None and (who := records.read(directory, "worker.json")):
                self._know(kept, who)
            self._ended(kept, record)
            return
        if not os.path.isdir(directory) or records.claim(directory, {"broker": os.getpid()}):
            self._never_ran(kept, "its keeper never came")
            return
        if self._connect(kept):
            return
        owner = records.read(directory, "claim") or {}
        if "broker" in owner:
            self._never_ran(kept, "an earlier broker had given it up")
            return
        if not owner or tree.is_alive(owner.get("pid", 0), owner.get("start") or 0):
            # It has claimed the attempt and does not listen yet, or dies just now.
            self.hub.later(0.02, lambda: self._settle_again(kept))
            return
        who = records.read(directory, "worker.json")
        if who is None:
            self._never_ran(kept, "its keeper was killed")
            return
        kept.link = None
        self._know(kept, who)
        self._watch_orphan(kept)

    def _settle_again(self, kept: _Kept) -> None:
        if self._kept.get(kept.run) is kept and kept.link is None:
            self._settle(kept)

    def _connect(self, kept: _Kept) -> bool:
        """Find the keeper through its socket."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        directory = os.open(kept.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            link.connect(f"/proc/self/fd/{directory}/keeper.sock")
        except OSError:
            link.close()
            return False
        finally:
            os.close(directory)
        if not is_ours(link):
            link.close()
            return False
        self._link(kept, link)
        if kept.wishes:
            packets.send(link, kept.wishes)
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
        """The keeper was killed: see to the rest of its tree ourselves."""
        assert kept.keeper is not None
        assert kept.worker is not None
        kept.orphan = Orphan(
            self.hub,
            kept.directory,
            kept.keeper,
            kept.worker,
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

    def _orphan_gone(self, kept: _Kept) -> None:
        assert kept.worker is not None
        if not records.has_run(kept.directory):
            self._never_ran(kept, "its keeper was killed")
            return
        # It may have ended before we knew it for an orphan, and wait to be collected.
        self.reap()
        status = self._statuses.pop(kept.worker.pid, None)
        if status is None:
            status = own_status(kept.directory, kept.worker.pid)
        self._ended(kept, {"status": status, "stopped": kept.stopped, "system_peak": kept.peak})

    def _reaped(self, pid: int, status: int) -> None:
        """Remember the status of what fell to us or a nursery; only orphans' will be asked for."""
        if any(kept.worker is not None and kept.worker.pid == pid for kept in self._kept.values()):
            self._statuses[pid] = status
