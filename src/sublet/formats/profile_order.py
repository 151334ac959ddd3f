"""The order to record a running program, and what its processes leave of it.

Orders are files in `profile/`, in the directory of an attempt: `target` for the program that is
profiled, `beside-P` for a neighbour, by the process P that records. An order holds while its file
is there and that process lives. Each process of a program leaves one file in the order's `parts`, a
line of JSON for each event; times are CLOCK_MONOTONIC in ns, the same in all processes of a
machine:

    ["hello", pid]                               it has begun to record
    ["step", thread, name, begin, ns]            a step in a thread of Python
    ["op", thread, name, begin, ns]              an operation in TensorFlow's profile
    ["memory", at, bytes]                        what TensorFlow's allocator has in use
    ["note", text]                               what its user should know
    ["done", steps, ns]                          TensorFlow's profile has ended, after so many steps
    ["end"]                                      it records no more
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from typing import Any

from . import attempt_files
from .shares import start_time

DIRECTORY = "profile"
_TARGET = "target"
_BESIDE = "beside-"
LONGEST = 60.0
"""Seconds of the longest profile of TensorFlow's."""


@dataclasses.dataclass(frozen=True)
class ProfileOrder:
    """What to record, for whom, and where to leave it."""

    pid: int
    start: int
    """The process that records, and when it started."""
    parts: str
    """The directory for the files of all processes."""
    job: int = 0
    profile: str = ""
    """The directory for TensorFlow's profile; empty if only steps are recorded."""
    name: str = ""
    """How the file of that profile begins."""
    steps: int = 0
    """Profile so many steps, from the next one on; 0 to begin at once."""
    seconds: float = LONGEST
    """Profile for at most so long."""

    @property
    def holds(self) -> bool:
        """Whether the process that records is alive."""
        return start_time(self.pid) == self.start

    def part(self, pid: int) -> str:
        """The file of one process."""
        return os.path.join(self.parts, f"{self.job}-{pid}")


def place(directory: str, order: ProfileOrder) -> int | None:
    """Give the program of this attempt an order. Returns the process that has it profiled already,
    if there is one. Raises OSError if the attempt is gone."""
    os.makedirs(os.path.join(directory, DIRECTORY), mode=0o700, exist_ok=True)
    path = _path(directory, order)
    other = target(directory) if order.profile else None
    if other is not None and other.holds:
        return other.pid
    with open(f"{path}.new-{order.pid}", "w", encoding="utf-8") as file:
        json.dump(dataclasses.asdict(order), file)
    try:
        if other is not None:
            os.unlink(path)
        os.link(file.name, path)
    except FileExistsError:
        other = target(directory)
        return other.pid if other is not None else order.pid
    finally:
        os.unlink(file.name)
    return None


def withdraw(directory: str, order: ProfileOrder) -> None:
    """Withdraw an order; does nothing if its file is gone."""
    with contextlib.suppress(OSError):
        os.unlink(_path(directory, order))


def target(directory: str) -> ProfileOrder | None:
    """The order to profile the program of this attempt; None if there is none."""
    return _read(os.path.join(directory, DIRECTORY), _TARGET)


def orders(directory: str) -> list[ProfileOrder]:
    """The orders that hold for the program of this attempt."""
    place = os.path.join(directory, DIRECTORY)
    try:
        names = os.listdir(place)
    except OSError:
        return []
    named = (name for name in names if ".new-" not in name)
    found = (_read(place, name) for name in named)
    return [one for one in found if one is not None and one.holds]


def read_part(path: str) -> list[list[Any]]:
    """The events of a part that are complete."""
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    events = []
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue  # Its process was killed while it wrote this.
        if isinstance(event, list) and event:
            events.append(event)
    return events


def _path(directory: str, order: ProfileOrder) -> str:
    name = _TARGET if order.profile else f"{_BESIDE}{order.pid}"
    return os.path.join(directory, DIRECTORY, name)


def _read(place: str, name: str) -> ProfileOrder | None:
    record = attempt_files.read(place, name)
    try:
        return None if record is None else ProfileOrder(**record)
    except TypeError:
        return None
