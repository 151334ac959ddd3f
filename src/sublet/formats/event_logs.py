"""`events-<pid>.json` in an attempt's directory: where a process writes TensorBoard event files."""

from __future__ import annotations

import contextlib
import dataclasses
import os

from . import attempt_files

PREFIX = "events-"
MOST = 64
"""Directories of one attempt that are kept."""
_LONGEST_PATH = 4096


@dataclasses.dataclass(frozen=True)
class EventLog:
    """A directory that a process has written event files to. Another one may write there, too."""

    directory: str
    pid: int
    since: float
    """When it began to: wall seconds."""


def note(attempt: str, logs: list[EventLog]) -> None:
    """Say where this process writes event files. Never raises."""
    with contextlib.suppress(Exception):
        record = {"logs": [[one.directory, one.since] for one in logs[:MOST]]}
        attempt_files.write(attempt, f"{PREFIX}{os.getpid()}.json", record)


def read(attempt: str) -> list[EventLog]:
    """All that makes sense of what was noted, the earliest first."""
    found: list[EventLog] = []
    with contextlib.suppress(OSError):
        for name in os.listdir(attempt):
            digits = name.removeprefix(PREFIX).removesuffix(".json")
            if name.startswith(PREFIX) and digits.isascii() and digits.isdigit():
                found += _read(attempt, name, int(digits))
    return sorted(found, key=lambda one: (one.since, one.directory))[:MOST]


def _read(attempt: str, name: str, pid: int) -> list[EventLog]:
    logs = (attempt_files.read(attempt, name) or {}).get("logs")
    return [
        EventLog(one[0], pid, float(one[1]))
        for one in (logs[:MOST] if isinstance(logs, list) else [])
        if isinstance(one, list)
        and len(one) == 2
        and isinstance(one[0], str)
        and 0 < len(one[0]) <= _LONGEST_PATH
        and attempt_files.is_number(one[1], 0, 1e12)
    ]
