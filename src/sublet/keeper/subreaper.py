"""What a keeper, a witness, a nursery and a broker need as parents of processes."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from typing import NamedTuple

_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_FROM_TERMINALS = (
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGPIPE,
    signal.SIGTSTP,
)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies, so that their exits are seen."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def become(name: str) -> None:
    """Adopt orphans under this process name, and ignore what a terminal sends."""
    adopt_orphans()
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
    for number in _FROM_TERMINALS:
        signal.signal(number, signal.SIG_IGN)


class Wake(NamedTuple):
    """A pipe to which the interpreter writes the numbers of signals as they arrive."""

    reading: int
    writing: int

    def close(self) -> None:
        """Close both ends, in a child that has no use for them."""
        # Not asked what was set: since 3.12, asyncio's fork hook has unset it already.
        signal.set_wakeup_fd(-1)
        os.close(self.reading)
        os.close(self.writing)


def wake_on(*numbers: int) -> Wake:
    """Have these signals do nothing but wake the reader of the pipe."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    return Wake(reading, writing)


def collect() -> Iterator[tuple[int, int]]:
    """The children that have ended, each with its waitpid status."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status
