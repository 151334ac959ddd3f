"""The keeper's loop: watches one attempt's process tree until its last process has ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from typing import Any

from ..formats import attempt_files
from ..formats.worker_spec import LogSpec, WorkerSpec
from . import daemonize, process_tree, subreaper, witness
from .broker_links import BrokerLinks, Request
from .cgroup import Cgroup
from .output_files import LIMIT, SizeLimit
from .pausing import Pause
from .sampler import Sampler
from .scheduling import GUARANTEED, Affinity, SchedulingClass
from .time_limit import WHY, TimeLimit

GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL."""
LINGER = 1.0
"""Seconds that processes left behind by a program that has ended may take to end themselves."""
_MOST_LEFT = 20
PIDS = 8192
"""Processes and threads of one tree, where a control group can hold them."""


def identity(pid: int) -> dict[str, Any]:
    """How records name a process."""
    return {"pid": pid, "start": process_tree.start_time(pid) or 0}


def _descendants() -> list[int]:
    return process_tree.descendants(os.getpid())


class Supervisor:
    """Owns the tree of one worker, which is our child. `own` identifies us, the keeper."""

    def __init__(
        self,
        directory: str,
        spec: WorkerSpec,
        own: dict[str, Any],
        worker: int,
        how: str,
        group: Cgroup | None,
        link: socket.socket,
        its_witness: socket.socket,
    ) -> None:
        self._directory = directory
        self._spec = spec
        self._own = own
        self._worker = worker
        self._how = how
        self._group = group
        self._witness = its_witness
        self._links = BrokerLinks(
            directory,
            link,
            lambda: {"event": "kept", **self._introduction()},
            self._obey,
            self._start_broker,
        )
        self._began = time.monotonic()
        self._status: int | None = None
        self._children_left = True
        self._stopped = ""
        """Why the tree was asked to end."""
        self._ending = ""
        """How far the end of the tree has come: lingering, asked, forced; empty while it runs."""
        self._escalate_at = float("inf")
        self._time = TimeLimit(spec.get("time"))
        self._ran = 0.0
        self._left_behind: list[str] = []
        self._pause = Pause(_descendants, group)
        self._sampler = Sampler(
            worker, lambda sample: self._links.send({"event": "sampled", **sample}, "sampled")
        )
        self._affinity = Affinity(_descendants, spec["affinity"])
        logs: LogSpec = spec.get("logs") or {"paths": []}
        self._size_limit = SizeLimit(logs.get("paths", []), logs.get("limit", LIMIT))
        self._periodic = (
            self._pause,
            SchedulingClass(_descendants, spec.get("service", GUARANTEED)),
            self._affinity,
            self._size_limit,
            self._sampler,
        )
        if group is not None:
            group.limit_pids(spec.get("pids", PIDS))

    def introduce(self) -> None:
        """Record the worker, then report it; only then may its program start."""
        introduction = self._introduction()
        attempt_files.write(self._directory, "worker.json", introduction)
        self._links.send({"event": "started", **introduction})

    def run(self) -> None:
        """Stay until the last process of the tree has ended, and record how the worker did."""
        wake = subreaper.wake_on(signal.SIGCHLD, signal.SIGTERM).reading
        client = self._open_client()
        while self._children_left:
            self._wait(wake, client)
            if client is not None and select.select([client], [], [], 0)[0]:
                os.close(client)
                client = None
                self._stop("its client ended", GRACE)
            self._reap()
            self._escalate()
            now = time.monotonic()
            for part in self._periodic:
                if now >= part.due:
                    part.tick(now)
        self._size_limit.close()
        if self._group is not None:
            self._group.release()
        self._record_exit()

    def _introduction(self) -> dict[str, Any]:
        return {
            **identity(self._worker),
            "keeper": self._own,
            "witness": identity(os.getppid()),
            "how": self._how,
            "group": self._group.path if self._group is not None else None,
            "began": self._began,
        }

    def _wait(self, wake: int, client: int | None) -> None:
        """Handle messages and exits until a periodic task is due."""
        until = min(
            self._escalate_at,
            *(part.due for part in self._periodic),
            time.monotonic() + self._time.left() if not self._ending else float("inf"),
        )
        poll = select.poll()
        self._links.register(poll)
        poll.register(wake, select.POLLIN)
        if client is not None:
            poll.register(client, select.POLLIN)
        for number, events in poll.poll(max(0.0, until - time.monotonic()) * 1000):
            if number != wake:
                self._links.handle(number, events)
            elif signal.SIGTERM in os.read(wake, 4096):
                self._stop("its keeper was told to", GRACE)

    def _reap(self) -> None:
        """Collect ended processes; the tree is gone when there is nothing left to wait for."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._children_left = False
                return
            if pid == 0:
                return
            if pid == self._worker:
                self._status = status
                self._ran = self._time.spent()
                if not self._ending and self._spec.get("leave_children"):
                    self._children_left = False
                    return
                if not self._ending:
                    self._set_ending("lingering", LINGER)

    def _stop(self, why: str, grace: float) -> None:
        """Ask the tree to end; `_escalate` ensures that it does."""
        if self._ending in ("", "lingering"):
            self._stopped = why
            self._ask(grace)

    def _escalate(self) -> None:
        """End what was left behind, and kill what was asked to end and is still there."""
        if self._status is None and not self._ending and self._time.left() <= 0:
            self._stop(WHY, float(self._spec.get("grace", GRACE)))
        if time.monotonic() < self._escalate_at:
            return
        if self._ending == "lingering":
            self._left_behind = [f"{process_tree.name(pid)} ({pid})" for pid in _descendants()]
            self._ask(GRACE / 2)
            return
        if self._group is not None:
            self._group.kill()
        process_tree.end(os.getpid(), signal.SIGKILL)
        self._set_ending("forced", 0.1)

    def _ask(self, grace: float) -> None:
        process_tree.end(os.getpid(), signal.SIGTERM)
        self._pause.let_go()
        self._set_ending("asked", grace)

    def _set_ending(self, how: str, patience: float) -> None:
        self._ending = how
        self._escalate_at = time.monotonic() + patience

    def _record_exit(self) -> None:
        """Write down how it ended, then report it."""
        record = {
            "status": self._status,
            "stopped": self._stopped,
            "system_peak": self._sampler.peak,
            "ran": self._ran,
            "left": self._left_behind[:_MOST_LEFT],
        }
        with contextlib.suppress(OSError):
            attempt_files.write(self._directory, "exit.json", record, sync=True)
        self._links.send({"event": "ended", **record})

    def _open_client(self) -> int | None:
        """A descriptor of the client's process; None if the job needs none, or it has ended."""
        client = self._spec.get("client")
        if not client:
            return None
        try:
            descriptor = os.pidfd_open(client["pid"])
        except OSError:
            self._stop("its client ended", GRACE)
            return None
        if process_tree.start_time(client["pid"]) != client["start"]:
            self._stop("its client ended", GRACE)
        return descriptor

    def _obey(self, request: Request) -> None:
        """Do what a broker asks for."""
        if "stop" in request:
            self._stop(request.get("why", "it was told to"), request["stop"])
        if "pause" in request:
            self._set_paused(request["pause"])
        if "duty" in request and not self._ending:
            self._pause.duty(request["duty"])
        if "processors" in request:
            self._affinity.confine(request["processors"])
        if "signal" in request and self._status is None:
            # Not reaped yet, so the number cannot belong to another group.
            with contextlib.suppress(OSError):
                os.killpg(self._worker, request["signal"])

    def _set_paused(self, on: bool) -> None:
        """Stop the tree, or let it go on; a tree that is to end is not stopped any more."""
        if self._ending or on == self._pause.paused:
            return
        with contextlib.suppress(OSError):
            self._time.pause(on, self._directory)
        self._pause.pause(on)
        if not on:
            self._sampler.restart()

    def _start_broker(self, home: str, log: str, descriptors: list[int]) -> None:
        """Start a broker that is not part of our tree; the program waits for its report."""
        broker = self._spec.get("broker") or {}
        words = broker.get("command", [])
        environ = {**broker.get("environ", {}), "SUBLET_HOME": home}
        for report in descriptors:
            with contextlib.suppress(OSError, ValueError):
                if not witness.start_beside(self._witness, words, environ, log, report):
                    # The witness was killed, and our parent is nobody's witness.
                    daemonize.start(words, environ, log, report)
