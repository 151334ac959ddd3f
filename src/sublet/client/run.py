"""Runs a program in the foreground, under a lease.

To the user this process behaves like the program: its streams are the program's, signals are passed
on, Ctrl-Z and `fg` work, and the exit code comes back. A broker that dies meanwhile is replaced.
"""

import contextlib
import os
import select
import signal

from sublet.client.job_follower import JobFollower

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sublet.client.job_follower import Listener
    from sublet.domain.job_fields import JobFields
    from sublet.home import Home
    from sublet.wire.messages import Ended

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
    """A signal ended the wait before the program had started."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def run_in_foreground(
    spec: "JobFields",
    home: "Home",
    listener: "Listener",
    streams: list[int],
    pass_signals: bool,
    on_accepted: "Callable[[int], None]" = lambda job: None,
) -> "Ended":
    """Run a program to its end. `spec` has the fields of a JobSpec. `on_accepted` is told the
    number of its job.

    With `pass_signals` (main thread only), signals go to the program; GaveUp is raised if one that
    ends programs comes before this one has started.
    """
    with _signals(_PASSED_ON if pass_signals else ()) as wake:
        return _Foreground(spec, home, listener, streams, wake, on_accepted).run()


class _Foreground:
    def __init__(
        self,
        spec: "JobFields",
        home: "Home",
        listener: "Listener",
        streams: list[int],
        wake: int,
        on_accepted: "Callable[[int], None]",
    ) -> None:
        self.wake = wake
        self.on_accepted: Callable[[int], None] | None = on_accepted
        self.early: list[int] = []
        """Signals that came after the grant, before the program was known to run."""
        self.job = JobFollower(spec, home, listener, streams, wake)

    def run(self) -> "Ended":
        """Handle the broker's messages and signals until the job has ended."""
        from sublet.wire import messages  # noqa: F401  # Loaded while the broker is at work.

        try:
            while True:
                sock = self.job.fileno()
                ready = _ready(sock, self.wake)
                # The broker's messages come first: if the program runs already, the signal is meant
                # for it.
                if sock in ready and (ended := self.job.hear()) is not None:
                    if ended.lease is None and (
                        ends := [*filter(_GIVE_UP.__contains__, self.early)]
                    ):
                        raise GaveUp(ends[0])
                    return ended
                if self.job.job is not None and self.on_accepted is not None:
                    self.on_accepted(self.job.job)
                    self.on_accepted = None
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
            # It may run already, and then the signal is the program's. If not, the broker cancels
            # the start, however long that would have taken.
            first = number in _GIVE_UP and number not in self.early
            if first and not job.signal(number, early=True):
                raise GaveUp(number)
            self.early.append(number)
            return
        if job.program is None:
            if number in _GIVE_UP:
                raise GaveUp(number)
            # The broker starts no program whose client is stopped.
            job.signal(number)
            if number == signal.SIGTSTP:
                os.kill(os.getpid(), signal.SIGSTOP)
            return
        # A program outside the terminal's session does not stop for SIGTSTP.
        stop = number == signal.SIGTSTP
        sent = job.signal(int(signal.SIGSTOP if stop else number))
        if not sent and number in _GIVE_UP and job.fault is not None:
            raise job.fault  # The program has ended; how, nobody could say.
        if stop:
            os.kill(os.getpid(), signal.SIGSTOP)


@contextlib.contextmanager
def _signals(numbers: tuple[signal.Signals, ...]) -> "Iterator[int]":
    """Have these signals do nothing but write their number to a pipe, whose end is yielded.

    A signal that was ignored stays ignored.
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
    """Wait until some of these descriptors can be read. (`select` takes none above 1,023.)"""
    poll = select.poll()
    for number in numbers:
        poll.register(number, select.POLLIN)
    return [number for number, _ in poll.poll()]
