"""The broker's own words, for whoever looks for a fault. A disk that is full makes them few."""

import contextlib
import sys
import time
import traceback


def note(text: str) -> None:
    """One line in the log; what cannot be written is dropped."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    with contextlib.suppress(OSError, ValueError):
        print(f"{stamp} {text}", file=sys.stderr, flush=True)


def note_fault(what: str) -> None:
    """The exception that is being handled: a bug of ours."""
    note(f"{what}\n{traceback.format_exc()}")
