"""The journey of `sublet run`: a program in the foreground, under a lease.

To its user it behaves like the program itself: its streams are the program's, signals are passed
on, stopping and continuing work, and the exit code comes back. A broker that dies on the way is
replaced, and the job is found again.
"""

import contextlib
import os
import select
import signal

from sublet.client.job_follower import JobFollower

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from sublet.client.job_follower import Listener
    from sublet.home import Home
    from sublet.wire.messages import Ended
    from sublet.wire.pack import Tree

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
        self.wake = wake
        self.early: list[int] = []
        """Signals that came between the grant and the news of the start."""
        self.job = JobFollower(spec, home, listener, streams, wake)

    def run(self) -> "Ended":
        """Listen to the broker and to signals until the job has ended."""
        from sublet.wire import messages  # noqa: F401  # Loaded while the broker is at work.

        try:
            while True:
                sock = self.job.fileno()
                ready = _ready(sock, self.wake)
                # What the broker has said comes first: the program may run already, and then the
                # signal is meant for it.
                if sock in ready and (ended := self.job.hear()) is not None:
                    if ended.lease is None and (
                        ends := [*filter(_GIVE_UP.__contains__, self.early)]
                    ):
                        raise GaveUp(ends[0])
                    return ended
                if self.job.program is not None or not self.job.granted:
                    early, self.early = self.early, []
                    for number in early:
                        self._pass_on(number)
                if self.wake in ready:
                    for number in os.read(self.wake, 4096):
                        self._pass_on(number)
        finally:
            self.job.close()

    def _pass_on(self, number: int) -> None:
        job = self.job
        if job.program is None and job.granted:
            # It may run already, and then the signal is the program's. If not, the broker gives the
            # start up, however long that would have taken.
            if number in _GIVE_UP and number not in self.early:
                job.signal(number, early=True)
            self.early.append(number)
            return
        if job.program is None:
            if number in _GIVE_UP:
                raise GaveUp(number)
            # The broker starts no program whose command is stopped.
            job.signal(number)
            if number == signal.SIGTSTP:
                os.kill(os.getpid(), signal.SIGSTOP)
            return
        # A program outside of the terminal's session does not stop for SIGTSTP.
        stop = number == signal.SIGTSTP
        job.signal(int(signal.SIGSTOP if stop else number))
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


def _ready(*numbers: int) -> list[int]:
    """Those that can be read, once one can; `select` knows no numbers from 1,024 on."""
    poll = select.poll()
    for number in numbers:
        poll.register(number, select.POLLIN)
    return [number for number, _ in poll.poll()]
