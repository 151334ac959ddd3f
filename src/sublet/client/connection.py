"""The client's end of the broker's socket: find the broker or start it, ask, and ask the next one.

A client outlives any broker. `Reconnects` says when it turns to the next, and for how long it bears
that none can start; nobody else decides that.
"""

import contextlib
import errno
import os
import select
import signal
import socket
import struct
import sys
import time

from sublet import errors
from sublet.channel.peers import is_ours, process_of
from sublet.home import Home
from sublet.wire.frames import LARGEST_REPLY, Frames, at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from sublet.wire.messages import Reply, Request

    T = TypeVar("T")

_PATIENCE = 20.0
ANSWERS_WITHIN = 60.0
"""Seconds in which a broker answers a question, on a machine under any load."""
_MOST_FAILED_STARTS = 5
_LARGEST_LOG = 1 << 20
_MOST_RECONNECTS = 20
_SOON = 10.0
"""Seconds; a broker that lasted longer has not ended because of who asks it."""
_LOOK_FOR_BROKER = 0.25
LONGEST_FAULT = 300.0
"""Seconds for which a client bears that no broker can start; longer while its program lives."""
_REPORT_AFTER = 5.0
_LONGEST_PAUSE = 2.0


class Connection:
    """One connection to the broker.

    The typed messages are loaded when the first reply is read, while the broker is at work.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.frames = Frames(sock, LARGEST_REPLY)

    def send(self, request: "Request | bytes", descriptors: list[int] | None = None) -> None:
        """Send a request, which may be packed already. If the broker has hung up, `receive` says
        why, or that it is gone."""
        if not isinstance(request, bytes):
            from sublet.wire.messages import encode

            request = encode(request)
        with contextlib.suppress(ConnectionError):
            self.frames.send(request, descriptors)

    def receive_all(self) -> "list[Reply]":
        """All replies that have come, at least one; none when the broker is gone."""
        first = self.receive()
        if first is None:
            return []
        replies = [first]
        while (data := self.frames.take()) is not None:
            replies.append(self._read(data))
        return replies

    def receive(self) -> "Reply | None":
        """The next reply; None when the broker is gone. Raises the error if it is a refusal."""
        while (data := self.frames.take()) is None:
            if not self.frames.fill():
                return None
        return self._read(data)

    @staticmethod
    def _read(data: bytes) -> "Reply":
        from sublet.wire.messages import Refused, decode_reply

        reply = decode_reply(data)
        if isinstance(reply, Refused):
            kind = getattr(errors, reply.kind, errors.SubletError)
            raise kind(reply.message, reply.hint)
        return reply

    def wake_broker(self) -> None:
        """Let a broker go on that somebody has stopped: what it was sent cannot wait."""
        pid = process_of(self.frames.sock)
        with contextlib.suppress(OSError):
            broker = os.pidfd_open(pid)
            try:
                # Not hung up after that, so the number was the broker's, and no later process's.
                if not _is_hung_up(self.frames.sock):
                    signal.pidfd_send_signal(broker, signal.SIGCONT)
            finally:
                os.close(broker)

    def close(self) -> None:
        self.frames.close()


def _is_hung_up(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, 0)
    return bool(poll.poll(0))


def _never(seconds: float) -> bool:
    time.sleep(seconds)
    return False


class Reconnects:
    """Decides when a client whose broker is gone asks the next one.

    A few lost brokers are bad luck. Many, one soon after the other, have a reason: BrokerGone. That
    none can start, since the disk is full for example, is expected to pass.
    """

    def __init__(self, home: Home) -> None:
        self.announced = False
        """The broker has said that it leaves, since somebody wants it to: do not start another."""
        self._home = home
        self._count = 0
        self._last = 0.0
        self._fault_since: float | None = None
        self._bears_until = 0.0
        self._pause = _LOOK_FOR_BROKER

    def connect(self, needed: "Callable[[float], bool]" = _never) -> Connection:
        """Wait, and connect to the next broker. Bears for a while that none can start."""
        self.wait(needed)
        while True:
            try:
                return self.try_to_connect()
            except errors.WorldError as error:
                needed(self.bear(error))

    def try_to_connect(self) -> Connection:
        """Connect to the next broker. A WorldError is for `bear`, and then to be tried again."""
        try:
            connection = connect_or_start(self._home)
        except OSError as error:
            why = error.strerror or str(error)
            raise errors.WorldError(f"No broker can be started: {why}.") from error
        self._fault_since, self._pause = None, _LOOK_FOR_BROKER
        return connection

    def bear(self, error: errors.WorldError, lives: bool = False) -> float:
        """No broker can start: the seconds until the next try. Raises the error when this lasts
        too long; not while the client's program `lives`, which would be ended with its client."""
        now = time.monotonic()
        if self._fault_since is None:
            self._fault_since, self._bears_until = now, now + LONGEST_FAULT
        if lives:
            self._bears_until = now + LONGEST_FAULT
        if now >= self._bears_until:
            raise error
        if now >= self._fault_since + _REPORT_AFTER:
            from sublet.inside.current_lease import say

            say(f"no broker can start for now, so it is tried again and again: {error}")
        self._pause = min(1.5 * self._pause, _LONGEST_PAUSE)
        return self._pause

    def wait(self, needed: "Callable[[float], bool]" = _never) -> None:
        """Return when the next broker may be asked, and started if there is none.

        After an announced leave that is when another broker runs, or `needed` is true; it is called
        with the seconds it may take.
        """
        if self.announced:
            self.announced = False
            while (found := connect(self._home)) is None:
                if needed(_LOOK_FOR_BROKER):
                    return
            found.close()
            return
        now = time.monotonic()
        self._count = self._count + 1 if now < self._last + _SOON else 1
        self._last = now
        if self._count > _MOST_RECONNECTS:
            raise errors.BrokerGone("The broker keeps crashing.", f"See {self._home.log}.")
        time.sleep(min(0.01 * self._count, 0.2))


def ask(question: "Request | bytes", kind: "type[T]") -> "T":
    """Ask one question, and the next broker again if this one dies meanwhile.

    A question that changes something carries a token, or does no harm when it is done twice.
    Raises BrokerGone if the answer takes too long.
    """
    home = Home.find()
    reconnects = Reconnects(home)
    connection = connect_or_start(home)
    while True:
        connection.frames.sock.settimeout(ANSWERS_WITHIN)
        reply = None
        try:
            connection.send(question)
            reply = connection.receive()
        except TimeoutError:
            raise _silent(home) from None
        except OSError:
            pass
        finally:
            connection.close()
        if reply is not None:
            assert isinstance(reply, kind)
            return reply
        connection = reconnects.connect()


def _silent(home: Home) -> errors.BrokerGone:
    pid = home.lock.read_text().strip() or "?"
    return errors.BrokerGone(
        f"The broker (process {pid}) does not answer.",
        f"If somebody has stopped it, `kill -CONT {pid}` lets it go on. "
        f"`kill -9 {pid}` ends it; programs go on, and the next command starts another.",
    )


def connect(home: Home) -> Connection | None:
    """A connection to the broker that runs; None if none does."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # One that is stopped takes a few connections, and keeps the next ones waiting.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(_PATIENCE), 0))
    try:
        at(home.socket, sock.connect)
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        sock.close()
        return None
    except BlockingIOError:
        sock.close()
        raise _silent(home) from None
    except OSError as error:
        sock.close()
        if error.errno == errno.EMFILE:
            raise
        raise errors.WorldError(
            f"The broker's socket {home.socket} cannot be used: {error.strerror}.",
            "Set SUBLET_HOME to a directory of your own.",
        ) from error
    if not is_ours(sock):
        sock.close()
        raise errors.WorldError(
            f"The broker's socket {home.socket} is of another user.",
            "Set SUBLET_HOME to a directory of your own.",
        )
    return Connection(sock)


def connect_or_start(home: Home) -> Connection:
    """A connection to the broker, which is started if need be."""
    deadline = time.monotonic() + _PATIENCE
    failed = 0
    while (connection := connect(home)) is None:
        failed += not _start(home)
        if failed > _MOST_FAILED_STARTS or time.monotonic() > deadline:
            last = home.log.read_text(errors="replace").strip().splitlines()[-1:]
            raise errors.BrokerGone(
                "The broker crashes at start-up." if failed else "The broker does not answer.",
                f"It last said: {''.join(last)} (see {home.log}).",
            )
    return connection


def _start(home: Home) -> bool:
    """Start a broker and wait until it, or another that was quicker, is ready.

    False if it died before it reported anything; raises the error that it reported.
    """
    home.make()
    _rotate(home)
    reading, writing = os.pipe()
    try:
        log = os.open(home.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        os.close(reading)
        os.close(writing)
        raise errors.WorldError(
            f"The state directory {home.path} cannot be used: {error.strerror}.",
            "Make it writable, or set SUBLET_HOME to a directory that is.",
        ) from error
    try:
        if not _ask_keeper(home, writing):
            _start_detached(home, log, writing)
    finally:
        os.close(log)
    os.close(writing)
    with open(reading, encoding="utf-8", errors="replace") as pipe:
        if not select.select([reading], [], [], ANSWERS_WITHIN)[0]:
            raise _silent(home)
        report = pipe.read()
    kind, _, rest = report.partition("\n")
    message, _, hint = rest.partition("\n")
    if not kind:
        return False
    if kind == "ready":
        return True
    if kind == errors.BrokerRuns.__name__:
        time.sleep(0.02)
        return True
    raise getattr(errors, kind, errors.WorldError)(message, hint.strip())


def _start_detached(home: Home, log: int, report: int) -> None:
    """Start it through a process that ends at once, so that the broker is nobody's child."""
    import subprocess  # Rarely needed, and not free.

    environ = {**os.environ, "SUBLET_HOME": str(home.path)}
    # It would be taken for a part of the job whose lease this is.
    environ.pop("SUBLET_LEASE", None)
    subprocess.run(
        [sys.executable, "-S", "-E", "-c", _MIDDLE, str(report)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=[report],
        check=False,
        env=environ,
    )


def _ask_keeper(home: Home, report: int) -> bool:
    """Have this program's keeper start the broker, if it has one: the keeper ends with the program
    whatever the program itself has started."""
    if "SUBLET_LEASE" not in os.environ:
        return False
    from sublet.formats import packets
    from sublet.inside.current_lease import current

    lease = current()
    if lease is None:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as keeper:
        try:
            at(f"{lease.dir}/keeper.sock", keeper.connect)
        except OSError:
            return False  # It was killed, or this process holds its lease itself.
        wanted = {"broker": str(home.path), "log": str(home.log)}
        return packets.send(keeper, wanted, [report])


def _rotate(home: Home) -> None:
    """Set a log that has grown large aside, in the place of the one set aside before."""
    with contextlib.suppress(OSError):
        if home.log.stat().st_size > _LARGEST_LOG:
            home.log.replace(home.log.with_suffix(".log.1"))


_MIDDLE = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
os.chdir("/")
os.umask(0o077)
os.set_inheritable(int(sys.argv[1]), True)
os.execv(sys.executable, [sys.executable, "-m", "sublet.broker", sys.argv[1]])
"""
