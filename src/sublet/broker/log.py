"""The broker's log. What a full disk does not take is dropped.

It has lines for people, about what went wrong. With `SUBLET_LOG=json` each line is a JSON object,
and every change of a job is one of them; then the file is bounded, too.
"""

import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

_LARGEST = 16 << 20
"""Bytes of a file with JSON; one more is kept, that of the time before."""

_file: Path | None = None
"""Where stderr goes, if it is to have JSON."""


def use_json(file: Path) -> None:
    """Write JSON from now on. Stderr goes to this file, which is set aside when it is large."""
    global _file
    _file = file


def is_json() -> bool:
    """Whether the log is written as JSON; `record` writes nothing otherwise."""
    return _file is not None


def note(text: str) -> None:
    """Write a line with the time."""
    if _file is not None:
        record("note", {"message": text}, "warning")
        return
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    _write(f"{stamp} {text}")


def note_fault(what: str) -> None:
    """Log the exception being handled, which is a bug in Sublet."""
    if _file is not None:
        record("fault", {"message": what, "traceback": traceback.format_exc()}, "error")
    else:
        note(f"{what}\n{traceback.format_exc()}")


def record(event: str, facts: Mapping[str, object], level: str = "info") -> None:
    """Write an event with its facts, if the log is JSON; what is None is left out."""
    if _file is None:
        return
    moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    known = {name: fact for name, fact in facts.items() if fact is not None}
    _set_aside(_file)
    _write(json.dumps({"time": moment, "level": level, "event": event, **known}))


def _write(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def _set_aside(file: Path) -> None:
    """Begin a new file in the place of one that is full."""
    with contextlib.suppress(OSError):
        ours = os.fstat(2)
        if ours.st_size < _LARGEST or not os.path.samestat(ours, file.stat()):
            return
        file.replace(file.with_suffix(".log.1"))
        anew = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.dup2(anew, 2)
        os.close(anew)
