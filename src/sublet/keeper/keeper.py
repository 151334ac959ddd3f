"""The small parent of one worker.

It owns the worker's process tree: everything the program starts, however it detaches, stays
below it. It ends that tree when it is asked to, when its time is up or when the job's client is
gone; pauses it; keeps it in its class of service and on its processors, and its output within
bounds; leaves an exit record on disk, and outlives both the broker and the nursery. It never
decides about leases, and never waits for a broker to listen.

What it is to keep is in spec.json (`formats.worker_spec`).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ..formats import attempt_files, packets, worker_spec
from ..formats.worker_spec import LogSpec, WorkerSpec
from . import daemonize, process_tree, subreaper, witness
from .affinity import Affinity
from .cgroup import Cgroup
from .output_files import LIMIT, SizeLimit
from .pausing import Pause
from .sampler import Sampler
from .scheduling import GUARANTEED, SchedulingClass
from .time_limit import WHY, TimeLimit
from .unleased_processes import UnleasedProcesses
from .worker import enter, run_cold


class StartOrder(NamedTuple):
    """Which attempt to keep, the link to the broker, and the program's descriptors: its three
    streams and, of a pool's worker, the channel to its client."""

    directory: str
    link: socket.socket
    streams: list[int]

    @classmethod
    def of(cls, directory: str, descriptors: list[int]) -> StartOrder:
        """An order whose link and streams came as descriptors."""
        link, *streams = descriptors
        return cls(directory, socket.socket(fileno=link), streams)


GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL."""
LINGER = 1.0
"""Seconds that processes left behind by a program that has ended may take to end themselves."""
_MOST_LEFT = 20
PIDS = 8192
"""Processes and threads of one tree, where a control group can hold them."""

_PR_SET_NAME = 15
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTSTP)


def keep(
    await_order: Callable[[], StartOrder | None],
    how: str,
    prepare: Callable[[], None] = lambda: None,
) -> WorkerSpec:
    """Fork a worker, wait for the order, and keep it.

    Returns in the worker only, when it is to become its program; the keeper never comes back.
    The fork comes before the order, so that a nursery can have a pair ready; `prepare` is what the
    worker does meanwhile.
    """
    gc.disable()
    behind = witness.stand_behind()
    os.setsid()
    subreaper.adopt_orphans()
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"sublet-keeper", 0, 0, 0)
    for deaf in _IGNORED:
        signal.signal(deaf, signal.SIG_IGN)
    ours, theirs = packets.pair()
    worker = os.fork()
    if worker == 0:
        ours.close()
        prepare()
        return enter(theirs)
    theirs.close()
    try:
        # Before the order comes: moving a process into a group takes the kernel a while.
        group = _enclose(worker)
        order = await_order()
        if order is None or not _keep(order, worker, ours, group, how, behind):
            # It ends by itself: the channel it waits on is closed.
            ours.close()
            os.waitpid(worker, 0)
        if group is not None:
            group.close()
    except BaseException as error:
        # Nobody is left to catch it: the tree must not outlive its keeper's mistake.
        print(f"sublet keeper: {error!r}", file=sys.stderr, flush=True)
        process_tree.end(os.getpid(), signal.SIGKILL)
        os._exit(70)
    os._exit(0)


def _enclose(worker: int) -> Cgroup | None:
    group = Cgroup.make(f"{os.getpid()}-{process_tree.start_time(os.getpid())}")
    if group is None or group.enter(worker):
        return group
    group.close()
    return None


def _keep(
    order: StartOrder,
    worker: int,
    channel: socket.socket,
    group: Cgroup | None,
    how: str,
    behind: socket.socket,
) -> bool:
    """Stay until the attempt's tree is gone; False if the attempt is not to be had any more."""
    own = {**_identity(os.getpid()), "boot": process_tree.boot()}
    spec = worker_spec.read(order.directory)
    if spec is None or not attempt_files.claim(order.directory, own):
        return False
    kept = _Keeper(order.directory, spec, own, worker, how, group, order.link, behind)
    packets.send(behind, {"keeps": worker, "directory": order.directory})
    kept.introduce()
    packets.send(channel, {"go": order.directory}, order.streams)
    channel.close()
    for number in order.streams:
        os.close(number)
    kept.run()
    return True


def _descendants() -> list[int]:
    return process_tree.descendants(os.getpid())


def _identity(pid: int) -> dict[str, Any]:
    return {"pid": pid, "start": process_tree.start_time(pid) or 0}


def _is_list_of_processors(value: object) -> bool:
    return isinstance(value, list) and all(type(number) is int for number in value)


_WISHES: dict[str, Callable[[Any], bool]] = {
    "stop": lambda value: attempt_files.is_number(value, 0, 1e9),
    "why": lambda value: isinstance(value, str),
    "pause": lambda value: isinstance(value, bool),
    "duty": lambda value: attempt_files.is_number(value, 0, 1),
    "processors": _is_list_of_processors,
    "signal": lambda value: type(value) is int and value in signal.valid_signals(),
    "broker": lambda value: isinstance(value, str),
    "log": lambda value: isinstance(value, str),
}
"""What a keeper may be asked, and which values make sense; all else is passed over."""
_ROOT = 0
_MOST_LINKS = 64
"""Brokers and others that may be connected at a time."""


class _Keeper:
    """The keeper's loop."""

    def __init__(
        self,
        directory: str,
        spec: WorkerSpec,
        own: dict[str, Any],
        worker: int,
        how: str,
        group: Cgroup | None,
        link: socket.socket,
        behind: socket.socket,
    ) -> None:
        self.behind = behind
        self.directory = directory
        self.spec = spec
        self.own = own
        self.worker = worker
        self.how = how
        self.group = group
        self.links = [packets.Link(link)]
        self.listener: socket.socket | None = None
        self.askers: set[packets.Link] = set()
        """Links of processes of our own tree, which may ask for a broker and for nothing else."""
        self.began = time.monotonic()
        self.status: int | None = None
        self.children_left = True
        self.stopped = ""
        self.ending = ""
        """How far the end of the tree has come: lingering, asked, forced; empty while it runs."""
        self.press_at = float("inf")
        self.brake = Pause(_descendants, group)
        self.gauge = Sampler(
            lambda told: self.tell({"event": "sampled", **told}, "sampled"),
            UnleasedProcesses(worker).look,
        )
        self.processors = Affinity(_descendants, spec["affinity"])
        logs: LogSpec = spec.get("logs") or {"paths": []}
        self.bound = SizeLimit(logs.get("paths", []), logs.get("limit", LIMIT))
        self.chores = (
            self.brake,
            SchedulingClass(_descendants, spec.get("service", GUARANTEED)),
            self.processors,
            self.bound,
            self.gauge,
        )
        self.runtime = TimeLimit(spec.get("time"))
        self.ran = 0.0
        self.left: list[str] = []
        """What the program has left behind."""
        if group is not None:
            group.limit_pids(spec.get("pids", PIDS))

    def introduce(self) -> None:
        """Write down whom we keep, and say so; only then may it be let go."""
        attempt_files.write(self.directory, "worker.json", self.who())
        self.tell({"event": "started", **self.who()})

    def run(self) -> None:
        """Stay until the last process of the tree has ended."""
        wake = subreaper.wake_on(signal.SIGCHLD, signal.SIGTERM).reading
        client = self._watch_client()
        while self.children_left:
            self._wait(wake, client)
            if client is not None and not self._client_lives(client):
                os.close(client)
                client = None
                self.stop("its client ended", GRACE)
            self.reap()
            self.press()
            now = time.monotonic()
            for chore in self.chores:
                if now >= chore.due:
                    chore.turn(now)
        self.bound.close()
        if self.group is not None:
            self.group.release()
        self.leave_record()

    def who(self) -> dict[str, Any]:
        """Whom we keep, and how it was started."""
        return {
            **_identity(self.worker),
            "keeper": self.own,
            "witness": _identity(os.getppid()),
            "how": self.how,
            "group": self.group.path if self.group is not None else None,
            "began": self.began,
        }

    def tell(self, packet: dict[str, Any], slot: str = "") -> None:
        """Say something to every broker; one that does not listen now hears it later, and of what
        has the same slot only the last."""
        for link in self.links:
            if link not in self.askers:
                # One that is gone may have said something that we have not heard yet.
                link.put(packet, slot)

    def reap(self) -> None:
        """Collect what has ended; the tree is gone when there is nothing left to wait for."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.children_left = False
                return
            if pid == 0:
                return
            if pid == self.worker:
                self.status = status
                self.ran = self.runtime.spent()
                if not self.ending and self.spec.get("leave_children"):
                    self.children_left = False
                    return
                if not self.ending:
                    self._end("lingering", LINGER)

    def stop(self, why: str, grace: float) -> None:
        """Ask the tree to end; `press` sees to it that it does."""
        if self.ending in ("", "lingering"):
            self.stopped = why
            self._ask(grace)

    def pause(self, on: bool) -> None:
        """Stop the tree, or let it go on; one that is to end is not stopped any more."""
        if self.ending or on == self.brake.paused:
            return
        with contextlib.suppress(OSError):
            self.runtime.pause(on, self.directory)
        self.brake.pause(on)
        if not on:
            self.gauge.begin_anew()

    def press(self) -> None:
        """End what was left behind, and by force what was asked to end and is still there."""
        if self.status is None and not self.ending and self.runtime.left() <= 0:
            self.stop(WHY, float(self.spec.get("grace", GRACE)))
        if time.monotonic() < self.press_at:
            return
        if self.ending == "lingering":
            self.left = [f"{process_tree.name(pid)} ({pid})" for pid in _descendants()]
            self._ask(GRACE / 2)
            return
        if self.group is not None:
            self.group.kill()
        process_tree.end(os.getpid(), signal.SIGKILL)
        self._end("forced", 0.1)

    def _ask(self, grace: float) -> None:
        process_tree.end(os.getpid(), signal.SIGTERM)
        self.brake.let_go()
        self._end("asked", grace)

    def _end(self, how: str, patience: float) -> None:
        self.ending = how
        self.press_at = time.monotonic() + patience

    def leave_record(self) -> None:
        """Write down how it ended, then say so."""
        record = {
            "status": self.status,
            "stopped": self.stopped,
            "system_peak": self.gauge.peak,
            "ran": self.ran,
            "left": self.left[:_MOST_LEFT],
        }
        with contextlib.suppress(OSError):
            attempt_files.write(self.directory, "exit.json", record, sync=True)
        self.tell({"event": "ended", **record})

    def _listen(self) -> None:
        """Where the next broker finds us. A disk that is full has no room for it: tried again."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                listener.bind(f"/proc/self/fd/{directory}/keeper.sock")
            finally:
                os.close(directory)
            listener.listen(16)
            listener.setblocking(False)
        except OSError:
            listener.close()
            return
        self.listener = listener

    def _watch_client(self) -> int | None:
        client = self.spec.get("client")
        if not client:
            return None
        try:
            descriptor = os.pidfd_open(client["pid"])
        except OSError:
            self.stop("its client ended", GRACE)
            return None
        if process_tree.start_time(client["pid"]) != client["start"]:
            self.stop("its client ended", GRACE)
        return descriptor

    @staticmethod
    def _client_lives(descriptor: int) -> bool:
        return not select.select([descriptor], [], [], 0)[0]

    def _wait(self, wake: int, client: int | None) -> None:
        until = min(
            self.press_at,
            *(chore.due for chore in self.chores),
            time.monotonic() + self.runtime.left() if not self.ending else float("inf"),
        )
        poll = select.poll()
        links = {link.fileno(): link for link in self.links}
        for number, link in links.items():
            poll.register(number, select.POLLIN | (select.POLLOUT if link.waiting else 0))
        if self.listener is None:
            self._listen()
        listening = -1 if self.listener is None else self.listener.fileno()
        for number in (wake, listening, -1 if client is None else client):
            if number >= 0:
                poll.register(number, select.POLLIN)
        for number, events in poll.poll(max(0.0, until - time.monotonic()) * 1000):
            if number == wake:
                if signal.SIGTERM in os.read(wake, 4096):
                    self.stop("its keeper was told to", GRACE)
            elif number == listening:
                self._greet()
            elif number in links:
                if events & select.POLLOUT:
                    links[number].flush()
                if events & ~select.POLLOUT:
                    self._hear(links[number])

    def _greet(self) -> None:
        """A later broker has found us: tell it where things stand. Or our program wants one."""
        assert self.listener is not None
        try:
            sock, _ = self.listener.accept()
        except OSError:
            return
        pid, user = packets.peer(sock)
        if user not in (os.getuid(), _ROOT) or len(self.links) >= _MOST_LINKS:
            sock.close()
            return
        link = packets.Link(sock)
        self.links.append(link)
        if pid in _descendants():
            self.askers.add(link)
        else:
            link.put({"event": "kept", **self.who()})

    def _hear(self, link: packets.Link) -> None:
        heard = link.receive()
        if heard is None:
            self.links.remove(link)
            self.askers.discard(link)
            link.close()
            return
        packet, descriptors = heard
        wishes = {
            name: packet[name]
            for name, makes_sense in _WISHES.items()
            if name in packet and makes_sense(packet[name])
        }
        if "broker" in wishes and "log" in wishes:
            self._start_broker(wishes["broker"], wishes["log"], descriptors)
        packets.close(descriptors)
        if link not in self.askers:
            self._follow(wishes)

    def _follow(self, wishes: dict[str, Any]) -> None:
        """Do what a broker wants."""
        if "stop" in wishes:
            self.stop(wishes.get("why", "it was told to"), wishes["stop"])
        if "pause" in wishes:
            self.pause(wishes["pause"])
        if "duty" in wishes and not self.ending:
            self.brake.duty(wishes["duty"])
        if "processors" in wishes:
            self.processors.confine(wishes["processors"])
        if "signal" in wishes and self.status is None:
            # Not reaped yet, so the number cannot have gone to another group.
            with contextlib.suppress(OSError):
                os.killpg(self.worker, wishes["signal"])

    def _start_broker(self, home: str, log: str, descriptors: list[int]) -> None:
        """Our program needs a broker that is not part of our tree; it waits for the report."""
        started = self.spec.get("broker") or {}
        words = started.get("command", [])
        environ = {**started.get("environ", {}), "SUBLET_HOME": home}
        for report in descriptors:
            with contextlib.suppress(OSError, ValueError):
                if not witness.start_apart(self.behind, words, environ, log, report):
                    # It was killed, and our parent is nobody's witness.
                    daemonize.start(words, environ, log, report)


def main() -> None:
    """A cold keeper: `keeper DIRECTORY HOW LINK STDIN STDOUT STDERR [CHANNEL]`, descriptors as
    numbers."""
    directory, how, *numbers = sys.argv[1:]
    order = StartOrder.of(directory, [int(number) for number in numbers])
    run_cold(keep(lambda: order, how))


if __name__ == "__main__":
    main()
