"""The usage file: a record of what one process of a leased program uses, which outlives it.

`inside-<pid>` and `status-<pid>` in the attempt's directory. Each process writes its own
(`inside/measure.py`); files that are not complete are ignored.
"""

from __future__ import annotations

import dataclasses
import os
import struct

VERSION = 1
PREFIX = "inside-"
STATUS = "status-"
_EXIT = struct.Struct("<i")

_LAYOUT = struct.Struct("<10q")


@dataclasses.dataclass(frozen=True)
class Reading:
    """The contents of a usage file. Times are CLOCK_MONOTONIC in ns, sizes bytes; 0 is unknown."""

    pid: int
    main_started_ns: int
    runtime_started_ns: int
    current: int
    peak: int
    limit: int
    updated_ns: int
    failures: int
    asked: int
    exit_code: int | None


def pack(reading: Reading) -> bytes:
    _, *fields, exit_code = dataclasses.astuple(reading)
    return _LAYOUT.pack(VERSION, *fields, 0 if exit_code is None else exit_code + 1)


def read_usage(directory: str) -> list[Reading]:
    """All usage files of an attempt, in the order of their pids."""
    readings = []
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    for name in names:
        digits = name[len(PREFIX) :]
        if not (name.startswith(PREFIX) and digits.isascii() and digits.isdigit()):
            continue
        try:
            with open(os.path.join(directory, name), "rb") as file:
                reading = _unpack(int(digits), file.read(_LAYOUT.size + 1))
        except OSError:
            continue
        if reading is not None:
            readings.append(reading)
    return sorted(readings, key=lambda reading: reading.pid)


def read_exit_code(directory: str, pid: int) -> int | None:
    """The exit code that a process has left itself; None if it left none."""
    try:
        with open(os.path.join(directory, f"{STATUS}{pid}"), "rb") as file:
            (code,) = _EXIT.unpack(file.read(_EXIT.size + 1))
        return int(code) & 0xFF
    except (OSError, struct.error):
        codes = [reading.exit_code for reading in read_usage(directory) if reading.pid == pid]
        return codes[-1] if codes else None


def _unpack(pid: int, data: bytes) -> Reading | None:
    if len(data) != _LAYOUT.size:
        return None
    version, *fields, exit_plus_one = _LAYOUT.unpack(data)
    if version != VERSION or min(fields) < 0:
        return None
    fields.append(exit_plus_one - 1 if exit_plus_one else None)
    return Reading(pid, *fields)
