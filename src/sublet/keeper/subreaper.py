"""What it takes to be the parent of processes that others have started."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from typing import NamedTuple

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Descendants whose own parent dies fall to us, so that their exits are still seen."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Wake(NamedTuple):
    """A pipe into which the interpreter writes the numbers of signals as they arrive."""

    reading: int
    writing: int

    def close(self) -> None:
        """Close both ends, in a child that has no use for them."""
        # Asked of nobody: since Python 3.12 asyncio's fork hook has unset the descriptor already.
        signal.set_wakeup_fd(-1)
        os.close(self.reading)
        os.close(self.writing)


def wake_on(*numbers: int) -> Wake:
    """Have these signals do nothing but wake whoever reads the pipe."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    return Wake(reading, writing)


def collect() -> Iterator[tuple[int, int]]:
    """The children that have ended, and how, as waitpid says it."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status
