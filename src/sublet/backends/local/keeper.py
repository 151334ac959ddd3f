"""The small parent of one worker.

It owns the worker's process tree: everything the program starts, however it detaches, stays
below it. It ends that tree when it is asked to, when its time is up or when the job's client is
gone; pauses it; keeps it in its class of service and on its processors, and its output within
bounds; leaves an exit record on disk, and outlives both the broker and the nursery. It never
decides about leases.

All that concerns this module in spec.json beside the program and its surroundings:

    client    {"pid", "start"} of the process without which the job ends; null if it needs none
    time      seconds the program may run, pauses not counted; null for no limit
    grace     seconds between SIGTERM and SIGKILL when they are over
    service   "guaranteed" or "opportunistic"
    duty      the share of the time that it may run, above 0 and up to 1
    affinity  the processors that it may use; a broker may confine it to some of them for a while
    paused    whether it begins with a pause
    pids      the most processes and threads, where a control group can hold them
    broker    the command that starts a broker
    logs      {"paths", "limit"}: files of its output to keep within so many bytes; null for none
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from . import apart, packets, records, service, tree
from .brake import Brake
from .cgroup import Cgroup
from .logs import LIMIT, Trimmer
from .processors import Processors
from .runtime import WHY, Runtime

Spec = dict[str, Any]


class Order(NamedTuple):
    """Which attempt to keep, the link to the broker, and the program's descriptors: its three
    streams and, of a pool's worker, the channel to its client."""

    directory: str
    link: socket.socket
    streams: list[int]

    @classmethod
    def of(cls, directory: str, descriptors: list[int]) -> Order:
        """An order whose link and streams came as descriptors."""
        link, *streams = descriptors
        return cls(directory, socket.socket(fileno=link), streams)


GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL."""
LINGER = 1.0
"""Seconds that processes left behind by a program that has ended may take to end themselves."""
PIDS = 8192
"""Processes and threads of one tree, where a control group can hold them."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NAME = 15
_SAMPLES = (0.5, 0.5, 1.0, 2.0, 4.0)
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTSTP)


def keep(await_order: Callable[[], Order | None], how: str) -> Spec:
    """Fork a worker, wait for the order, and keep it.

    Returns in the worker only, when it is to become its program; the keeper never comes back.
    The fork comes before the order, so that a nursery can have a pair ready.
    """
    gc.disable()
    os.setsid()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_NAME, b"sublet-keeper", 0, 0, 0)
    for deaf in _IGNORED:
        signal.signal(deaf, signal.SIG_IGN)
    ours, theirs = packets.pair()
    worker = os.fork()
    if worker == 0:
        ours.close()
        return _enter(theirs)
    theirs.close()
    try:
        # Before the order comes: moving a process into a group takes the kernel a while.
        group = _enclose(worker)
        order = await_order()
        if order is None or not _keep(order, worker, ours, group, how):
            # It ends by itself: the channel it waits on is closed.
            ours.close()
            os.waitpid(worker, 0)
        if group is not None:
            group.close()
    except BaseException as error:
        # Nobody is left to catch it: the tree must not outlive its keeper's mistake.
        print(f"sublet keeper: {error!r}", file=sys.stderr, flush=True)
        tree.end(os.getpid(), signal.SIGKILL)
        os._exit(70)
    os._exit(0)


def _enclose(worker: int) -> Cgroup | None:
    group = Cgroup.make(str(os.getpid()))
    if group is None or group.enter(worker):
        return group
    group.close()
    return None


def _keep(
    order: Order, worker: int, channel: socket.socket, group: Cgroup | None, how: str
) -> bool:
    """Stay until the attempt's tree is gone; False if the attempt is not to be had any more."""
    own = {"pid": os.getpid(), "start": tree.start_time(os.getpid())}
    spec = records.read(order.directory, "spec.json")
    if spec is None or not records.claim(order.directory, own):
        return False
    kept = _Keeper(order.directory, spec, own, worker, how, group, order.link)
    kept.introduce()
    packets.send(channel, {"go": order.directory}, order.streams)
    channel.close()
    for number in order.streams:
        os.close(number)
    kept.run()
    return True


def _enter(channel: socket.socket) -> Spec:
    """In the worker: wait for the word to go, then take on the surroundings of the client."""
    signal.set_wakeup_fd(-1)
    # The keeper writes worker.json before it says go. A keeper that dies or has no order closes
    # the channel: the program has not run, and must not.
    heard = packets.receive(channel)
    if heard is None:
        os._exit(0)
    packet, streams = heard
    directory = packet["go"]
    spec = records.read(directory, "spec.json")
    if spec is None:
        os._exit(0)
    records.mark_run(directory)
    # A session of its own: the kernel hangs up on a stopped group whose last parent in the same
    # session dies, and a killed keeper must not cost a paused program its life. For the same
    # reason the kernel wakes it then: nobody may be left who could.
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
    _take_on(streams)
    for note in spec["notes"]:
        os.write(2, f"sublet: {note}\n".encode())
    for caught in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            ignored = caught in spec["ignored"]
            signal.signal(caught, signal.SIG_IGN if ignored else signal.SIG_DFL)
    for limit, (soft, hard) in spec["limits"].items():
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(int(limit), (soft, hard))
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, spec["affinity"])
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, spec["nice"])
    with contextlib.suppress(OSError):
        service.enter(spec.get("service", service.GUARANTEED))
    os.umask(spec["umask"])
    try:
        os.chdir(spec["cwd"])
    except OSError as error:
        print(f"sublet: the directory {spec['cwd']!r}: {error.strerror}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(126)
    gc.enable()
    return spec


def _take_on(streams: list[int]) -> None:
    """These become the descriptors 0, 1, 2 … of the program, and there are no others."""
    # Out of the way first: one of them may have a number that another is to get.
    apart = [fcntl.fcntl(number, fcntl.F_DUPFD, len(streams)) for number in streams]
    for target, number in enumerate(apart):
        os.dup2(number, target)
    os.closerange(len(streams), max(int(name) for name in os.listdir("/proc/self/fd")) + 1)


def _descendants() -> list[int]:
    return tree.descendants(os.getpid())


class _Keeper:
    """The keeper's loop."""

    def __init__(
        self,
        directory: str,
        spec: Spec,
        own: dict[str, Any],
        worker: int,
        how: str,
        group: Cgroup | None,
        link: socket.socket,
    ) -> None:
        self.directory = directory
        self.spec = spec
        self.own = own
        self.worker = worker
        self.how = how
        self.group = group
        self.links = [link]
        self.began = time.monotonic()
        self.status: int | None = None
        self.children_left = True
        self.peak = 0
        self.own_memory = 0
        self.maxrss = 0
        self.sampled = 0
        self.looked = self.began
        self.worked = 0.0
        self.next_sample = time.monotonic() + _SAMPLES[0]
        self.stopped = ""
        self.ending = ""
        """How far the end of the tree has come: lingering, asked, forced; empty while it runs."""
        self.press_at = float("inf")
        self.brake = Brake(_descendants, group)
        self.service = service.Service(
            _descendants, spec.get("service", service.GUARANTEED), spec["nice"]
        )
        self.processors = Processors(_descendants, spec["affinity"])
        logs = spec.get("logs") or {}
        self.trimmer = Trimmer(logs.get("paths", []), logs.get("limit", LIMIT))
        self.runtime = Runtime(spec.get("time"))
        self.ran = 0.0
        if group is not None:
            group.limit_pids(spec.get("pids", PIDS))
        if spec.get("duty", 1) < 1:
            self.brake.duty(spec["duty"])
        if spec.get("paused"):
            self.pause(True)

    def introduce(self) -> None:
        """Write down whom we keep, and say so; only then may it be let go."""
        records.write(self.directory, "worker.json", self.who())
        self.tell({"event": "started", **self.who()})

    def run(self) -> None:
        """Stay until the last process of the tree has ended."""
        self.listener = self._listen()
        wake = self._catch_signals()
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
            for chore in (self.brake, self.service, self.processors, self.trimmer):
                if now >= chore.due:
                    chore.turn(now)
            if now >= self.next_sample:
                self.sample()
        self.trimmer.close()
        self.leave_record()

    def who(self) -> dict[str, Any]:
        """Whom we keep, and how it was started."""
        return {
            "pid": self.worker,
            "start": tree.start_time(self.worker) or 0,
            "keeper": self.own,
            "how": self.how,
            "group": self.group.path if self.group is not None else None,
            "began": self.began,
        }

    def stance(self) -> dict[str, Any]:
        """How the tree is held: what a broker has asked for, this one or one before."""
        return {
            "paused": self.brake.paused,
            "duty": self.brake.share,
            "service": self.service.name,
            "refused": self.service.refused,
        }

    def tell(self, packet: dict[str, Any]) -> None:
        """Say something to every broker that listens."""
        self.links = [link for link in self.links if packets.send(link, packet)]

    def reap(self) -> None:
        """Collect what has ended; the tree is gone when there is nothing left to wait for."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self.children_left = False
                return
            if pid == 0:
                return
            self.maxrss = max(self.maxrss, usage.ru_maxrss * 1024)
            if pid == self.worker:
                self.status = status
                self.ran = self.runtime.spent()
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
            # The pause is no part of what it does from now on.
            self._busy(_descendants())
            self.next_sample = time.monotonic() + _SAMPLES[0]

    def press(self) -> None:
        """End what was left behind, and by force what was asked to end and is still there."""
        if self.status is None and not self.ending and self.runtime.left() <= 0:
            self.stop(WHY, float(self.spec.get("grace", GRACE)))
        if time.monotonic() < self.press_at:
            return
        if self.ending == "lingering":
            self._ask(GRACE / 2)
            return
        if self.group is not None:
            self.group.kill()
        tree.end(os.getpid(), signal.SIGKILL)
        self._end("forced", 0.1)

    def _ask(self, grace: float) -> None:
        tree.end(os.getpid(), signal.SIGTERM)
        self.brake.let_go()
        self._end("asked", grace)

    def _end(self, how: str, patience: float) -> None:
        self.ending = how
        self.press_at = time.monotonic() + patience

    def sample(self) -> None:
        """Measure what the tree adds to the machine, and how many processors it keeps busy."""
        self.next_sample = time.monotonic() + _SAMPLES[min(self.sampled, len(_SAMPLES) - 1)]
        self.sampled += 1
        pids = _descendants()
        if self.sampled == 1:
            # Once: reading it takes as long as the program's, and it hardly changes.
            self.own_memory = tree.added_memory([os.getpid()])
        now = tree.added_memory(pids) + self.own_memory
        self.peak = max(self.peak, now)
        told = {"now": now, "peak": self.peak, "pids": pids[:500], "busy": self._busy(pids)}
        self.tell({"event": "sampled", **told})

    def _busy(self, pids: list[int]) -> float:
        """How many processors the tree has kept busy since this was last asked."""
        since, before = self.looked, self.worked
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.looked = time.monotonic()
        self.worked = tree.processor_time(pids) + usage.ru_utime + usage.ru_stime
        return max(0.0, self.worked - before) / max(self.looked - since, 0.001)

    def leave_record(self) -> None:
        """Write down how it ended, then say so."""
        record = {
            "status": self.status,
            "stopped": self.stopped,
            "system_peak": self.peak,
            "maxrss": self.maxrss,
            "ran": self.ran,
        }
        with contextlib.suppress(OSError):
            records.write(self.directory, "exit.json", record, sync=True)
        self.tell({"event": "ended", **record})

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):
            listener.bind(f"/proc/self/fd/{directory}/keeper.sock")
            listener.listen(4)
        os.close(directory)
        return listener

    def _catch_signals(self) -> int:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.stop("its keeper was told to", GRACE))
        return reading

    def _watch_client(self) -> int | None:
        client = self.spec.get("client")
        if not client:
            return None
        try:
            descriptor = os.pidfd_open(client["pid"])
        except OSError:
            self.stop("its client ended", GRACE)
            return None
        if tree.start_time(client["pid"]) != client["start"]:
            self.stop("its client ended", GRACE)
        return descriptor

    @staticmethod
    def _client_lives(descriptor: int) -> bool:
        return not select.select([descriptor], [], [], 0)[0]

    def _wait(self, wake: int, client: int | None) -> None:
        until = min(
            self.next_sample,
            self.press_at,
            self.brake.due,
            self.service.due,
            self.processors.due,
            self.trimmer.due,
            time.monotonic() + self.runtime.left() if not self.ending else float("inf"),
        )
        poll = select.poll()
        sources: dict[int, socket.socket] = {link.fileno(): link for link in self.links}
        sources[self.listener.fileno()] = self.listener
        for number in (wake, *sources, *([] if client is None else [client])):
            poll.register(number, select.POLLIN)
        for number, _ in poll.poll(max(0.0, until - time.monotonic()) * 1000):
            if number == wake:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
            elif number == self.listener.fileno():
                self._greet()
            elif number in sources:
                self._hear(sources[number])

    def _greet(self) -> None:
        """A later broker has found us: tell it where things stand."""
        link, _ = self.listener.accept()
        self.links.append(link)
        packets.send(link, {"event": "kept", **self.who(), **self.stance()})

    def _hear(self, link: socket.socket) -> None:
        heard = packets.receive(link)
        if heard is None:
            self.links.remove(link)
            link.close()
            return
        packet, descriptors = heard
        if "broker" in packet:
            self._start_broker(packet["broker"], packet["log"], descriptors)
        if "stop" in packet:
            self.stop(str(packet.get("why", "it was told to")), float(packet["stop"]))
        if "pause" in packet:
            self.pause(bool(packet["pause"]))
        if "duty" in packet and not self.ending:
            self.brake.duty(float(packet["duty"]))
        if "service" in packet:
            self.service.change(str(packet["service"]))
            self.tell({"event": "stance", **self.stance()})
        if "processors" in packet:
            self.processors.confine(packet["processors"])
        if "signal" in packet and self.status is None:
            # Not reaped yet, so the number cannot have gone to another group.
            with contextlib.suppress(OSError):
                os.killpg(self.worker, int(packet["signal"]))

    def _start_broker(self, home: str, log: str, descriptors: list[int]) -> None:
        """Our program needs a broker that is not part of our tree; it waits for the report."""
        environ = {**os.environ, "SUBLET_HOME": home}
        for report in descriptors:
            with contextlib.suppress(OSError):
                apart.start(self.spec["broker"], environ, log, report)
            os.close(report)


def run_cold(spec: Spec) -> NoReturn:
    """In a cold worker: become the program."""
    argv = [os.fsencode(word) for word in spec["argv"]]
    environ = {os.fsencode(name): os.fsencode(value) for name, value in spec["environ"].items()}
    try:
        os.execvpe(argv[0], argv, environ)
    except OSError as error:
        print(f"sublet: {os.fsdecode(argv[0])}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def main() -> None:
    """A cold keeper: `keeper DIRECTORY HOW LINK STDIN STDOUT STDERR [CHANNEL]`, descriptors as
    numbers."""
    directory, how, *numbers = sys.argv[1:]
    order = Order.of(directory, [int(number) for number in numbers])
    run_cold(keep(lambda: order, how))


if __name__ == "__main__":
    main()
