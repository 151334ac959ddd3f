"""The small parent of one worker.

It owns the worker's process tree: everything the program starts, however it detaches, stays
below it. It ends that tree when it is asked to or when the job's client is gone, leaves an exit
record on disk, and outlives both the broker and the nursery. It never decides about leases.
"""

from __future__ import annotations

import contextlib
import ctypes
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

from . import packets, records, tree
from .cgroup import Cgroup

Spec = dict[str, Any]


class Order(NamedTuple):
    """Which attempt to keep, the link to the broker, and the program's three streams."""

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
        group = Cgroup.make(str(os.getpid()))
        if group is not None:
            group.enter(worker)
        order = await_order()
        if order is not None:
            _keep(order, worker, ours, group, how)
        elif group is not None:
            group.kill()
            group.close()
    except BaseException as error:
        # Nobody is left to catch it: the tree must not outlive its keeper's mistake.
        print(f"sublet keeper: {error!r}", file=sys.stderr, flush=True)
        tree.end(os.getpid(), signal.SIGKILL)
        os._exit(70)
    os._exit(0)


def _keep(
    order: Order, worker: int, channel: socket.socket, group: Cgroup | None, how: str
) -> None:
    """Take the attempt if it is still to be had, and stay until its tree is gone."""
    own = {"pid": os.getpid(), "start": tree.start_time(os.getpid())}
    spec = records.read(order.directory, "spec.json")
    if spec is None or not records.claim(order.directory, own):
        return
    kept = _Keeper(order.directory, spec, own, worker, how, group, order.link)
    kept.introduce()
    packets.send(channel, {"go": order.directory}, order.streams)
    channel.close()
    for number in order.streams:
        os.close(number)
    kept.run()


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
    os.setpgid(0, 0)
    for target, number in enumerate(streams):
        os.dup2(number, target)
    for note in spec["notes"]:
        os.write(2, f"sublet: {note}\n".encode())
    os.closerange(3, max(int(name) for name in os.listdir("/proc/self/fd")) + 1)
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
    os.umask(spec["umask"])
    try:
        os.chdir(spec["cwd"])
    except OSError as error:
        print(f"sublet: the directory {spec['cwd']!r}: {error.strerror}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(126)
    gc.enable()
    return spec


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
        self.status: int | None = None
        self.children_left = True
        self.peak = 0
        self.maxrss = 0
        self.sampled = 0
        self.next_sample = time.monotonic() + _SAMPLES[0]
        self.stopped = ""
        self.ending = ""
        """How far the end of the tree has come: lingering, asked, forced; empty while it runs."""
        self.press_at = float("inf")
        self.ran = 0.0
        self.began = time.monotonic()

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
            if time.monotonic() >= self.next_sample:
                self.sample()
        self.leave_record()

    def who(self) -> dict[str, Any]:
        """Whom we keep, and how it was started."""
        start = tree.start_time(self.worker) or 0
        return {"pid": self.worker, "start": start, "keeper": self.own, "how": self.how}

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
                self.ran = time.monotonic() - self.began
                if not self.ending:
                    self._end("lingering", LINGER)

    def stop(self, why: str, grace: float) -> None:
        """Ask the tree to end; `press` sees to it that it does."""
        if self.ending in ("", "lingering"):
            self.stopped = why
            self._ask(grace)

    def press(self) -> None:
        """End what was left behind, and by force what was asked to end and is still there."""
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
        self._end("asked", grace)

    def _end(self, how: str, patience: float) -> None:
        self.ending = how
        self.press_at = time.monotonic() + patience

    def sample(self) -> None:
        """Measure what the tree adds to the machine."""
        self.next_sample = time.monotonic() + _SAMPLES[min(self.sampled, len(_SAMPLES) - 1)]
        self.sampled += 1
        pids = tree.descendants(os.getpid())
        now = tree.added_memory(pids) + tree.added_memory([os.getpid()])
        self.peak = max(self.peak, now)
        self.tell({"event": "sampled", "now": now, "peak": self.peak, "pids": pids[:500]})

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
        if self.group is not None:
            self.group.close()

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
        until = min(self.next_sample, self.press_at)
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
        packets.send(link, {"event": "kept", **self.who()})

    def _hear(self, link: socket.socket) -> None:
        heard = packets.receive(link)
        if heard is None:
            self.links.remove(link)
            link.close()
            return
        packet, _ = heard
        if "stop" in packet:
            self.stop(str(packet.get("why", "it was told to")), float(packet["stop"]))
        if "signal" in packet and self.status is None:
            # Not reaped yet, so the number cannot have gone to another group.
            with contextlib.suppress(OSError):
                os.killpg(self.worker, int(packet["signal"]))


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
    """A cold keeper: `keeper DIRECTORY HOW LINK STDIN STDOUT STDERR`, the last four as numbers."""
    directory, how, *numbers = sys.argv[1:]
    order = Order.of(directory, [int(number) for number in numbers])
    run_cold(keep(lambda: order, how))


if __name__ == "__main__":
    main()
