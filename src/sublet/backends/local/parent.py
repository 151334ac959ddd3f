"""What it takes to be the parent of processes that others have started."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Descendants whose own parent dies fall to us, so that their exits are still seen."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wake_on(*numbers: int) -> int:
    """A descriptor from which the numbers of these signals can be read; nothing else is done
    about them."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    return reading


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
