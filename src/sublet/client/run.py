"""The journey of `sublet run`: a program in the foreground, under a lease.

To its user it behaves like the program itself: its streams are the program's, signals are passed
on, stopping and continuing work, and the exit code comes back. A broker that dies on the way is
replaced, and the job is found again.
"""

import contextlib
import os
import select
import signal
import time

from sublet.backends.local import tree
from sublet.client.connection import Connection, connect, connect_or_start
from sublet.errors import BrokerGone
from sublet.wire import PROTOCOL
from sublet.wire.pack import pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Protocol

    from sublet.home import Home
    from sublet.wire.messages import Ended, Granted, Retried, Started
    from sublet.wire.pack import Tree

    class Listener(Protocol):
        """Who is told how the job fares."""

        def waits(self, reason: str) -> None:
            """It waits, and this is what for."""

        def granted(self, message: Granted) -> None:
            """It has a lease."""

        def started(self, message: Started) -> None:
            """Its program runs."""

        def retried(self, message: Retried) -> None:
            """It ran out of memory and is tried again."""


_PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGTSTP,
    signal.SIGCONT,
)
_GIVE_UP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_MOST_RECONNECTS = 20
_LOOK_FOR_BROKER = 0.25


class GaveUp(Exception):
    """The user did not want to wait any longer."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def run_in_foreground(
    spec: "Tree", home: "Home", listener: "Listener", streams: list[int], pass_signals: bool
) -> "Ended":
    """Run a program to its end. `spec` has the fields of a JobSpec.

    With `pass_signals` (main thread only), signals go to the program; GaveUp is raised if one
    comes that ends a program before this one has started.
    """
    with _signals(_PASSED_ON if pass_signals else ()) as wake:
        return _Foreground(spec, home, listener, streams, wake).run()


class _Foreground:
    def __init__(
        self, spec: "Tree", home: "Home", listener: "Listener", streams: list[int], wake: int
    ) -> None:
        self.streams = streams
        self.spec = spec
        self.home = home
        self.listener = listener
        self.wake = wake
        self.token = os.urandom(16).hex()
        self.job: int | None = None
        self.program: int | None = None
        self.granted = False
        self.early: list[int] = []
        """Signals that came between the grant and the news of the start."""
        self.left = False
        self.reconnects = 0
        self.connection = self._connect()

    def run(self) -> "Ended":
        """Listen to the broker and to signals until the job has ended."""
        from sublet.wire import messages  # noqa: F401  # Loaded while the broker is at work.

        try:
            while True:
                sock = self.connection.frames.sock.fileno()
                ready, _, _ = select.select([sock, self.wake], [], [])
                # What the broker has said comes first: the program may run already, and then the
                # signal is meant for it.
                if sock in ready and (ended := self._hear()) is not None:
                    return ended
                if self.wake in ready:
                    for number in os.read(self.wake, 4096):
                        self._pass_on(number)
        finally:
            self.connection.close()

    def _connect(self) -> Connection:
        connection = connect_or_start(self.home)
        request: Tree = {"type": "run", "spec": self.spec}
        if self.job is not None:
            request = {"type": "attach", "job": self.job}
        request |= {"token": self.token, "protocol": PROTOCOL}
        with contextlib.suppress(OSError):  # Found out when its answer does not come.
            connection.send(pack(request), self.streams)
        return connection

    def _hear(self) -> "Ended | None":
        """Take in all that the broker has sent; what is buffered would not wake us again."""
        from sublet.wire import messages as say

        try:
            replies = self.connection.receive_all()
        except OSError:
            replies = []
        for reply in replies:
            match reply:
                case say.Accepted(job=number):
                    self.job = number
                case say.Waits(reason=reason):
                    self.program, self.granted = None, False
                    self.listener.waits(reason)
                case say.Granted():
                    self.granted = True
                    self.listener.granted(reply)
                case say.Started(pid=pid):
                    self.program = pid
                    self.listener.started(reply)
                    for number in self.early:
                        self._pass_on(number)
                    self.early.clear()
                case say.Retried():
                    self.program, self.granted = None, False
                    self.listener.retried(reply)
                case say.Leaving():
                    self.left = True
                case say.Ended():
                    return reply
        if not replies:
            self._reconnect()
        return None

    def _reconnect(self) -> None:
        """The broker is gone; the job is in its ledger, so the next one knows it."""
        self.connection.close()
        if self.left:
            self._await_broker()
        else:
            self.reconnects += 1
            if self.reconnects > _MOST_RECONNECTS:
                raise BrokerGone("The broker ends again and again.", f"See {self.home.log}.")
            time.sleep(min(0.01 * self.reconnects, 0.2))
        self.left = False
        self.connection = self._connect()

    def _await_broker(self) -> None:
        """Somebody wanted the broker to end: do not start another before there is a need.

        There is one when the program has ended or a signal is to be passed on.
        """
        while (found := connect(self.home)) is None:
            if select.select([self.wake], [], [], _LOOK_FOR_BROKER)[0]:
                return
            if self.program is not None and tree.start_time(self.program) is None:
                return
        found.close()

    def _pass_on(self, number: int) -> None:
        if self.program is None and self.granted:
            # It may run already: the signal is the program's.
            self.early.append(number)
            return
        if self.program is None:
            if number in _GIVE_UP:
                raise GaveUp(number)
            if number == signal.SIGTSTP:
                os.kill(os.getpid(), signal.SIGSTOP)
            return
        # A program outside of the terminal's session does not stop for SIGTSTP.
        stop = number == signal.SIGTSTP
        with contextlib.suppress(OSError):
            self.connection.send(
                pack({"type": "signal", "number": int(signal.SIGSTOP if stop else number)})
            )
        if stop:
            os.kill(os.getpid(), signal.SIGSTOP)


@contextlib.contextmanager
def _signals(numbers: tuple[signal.Signals, ...]) -> "Iterator[int]":
    """These signals, when they arrive, are written to the descriptor given; they do nothing else.

    One that was ignored stays ignored.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = {}
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, lambda *_: None)
    if numbers:
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        if numbers:
            signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)
