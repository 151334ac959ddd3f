"""The broker's log. What a full disk does not take is dropped."""

import contextlib
import sys
import time
import traceback


def note(text: str) -> None:
    """Write a line with the time."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    with contextlib.suppress(OSError, ValueError):
        print(f"{stamp} {text}", file=sys.stderr, flush=True)


def note_fault(what: str) -> None:
    """Log the exception being handled, which is a bug in Sublet."""
    note(f"{what}\n{traceback.format_exc()}")
