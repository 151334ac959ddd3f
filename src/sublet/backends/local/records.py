"""The files in an attempt's directory: what a later broker finds, whoever was killed meanwhile.

    job.json      the broker's note of the job
    spec.json     what to run, written by the broker
    claim         who owns the attempt: made once, by the keeper, or by a broker that gave it up
    worker.json   the worker's identity, written before it is let go
    fresh.json    why a worker that was forked warm has become a fresh interpreter
    ran           made by the worker just before its program's first line
    exit.json     how it ended, written after the last process of the tree was seen to end
    keeper.sock   where a later broker finds the keeper

An attempt without `ran` whose processes are gone has not run a line of the program.
"""

from __future__ import annotations

import json
import os
from typing import Any

Record = dict[str, Any]
FRESH = "fresh.json"
"""As in `inside.program`, which needs nothing of this package."""


def claim(directory: str, owner: Record) -> bool:
    """Take the attempt; True for exactly one caller, ever."""
    path = os.path.join(directory, "claim")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(owner, file)
    return True


def read(directory: str, name: str) -> Record | None:
    """One of the records; None if it is not there or not whole."""
    try:
        with open(os.path.join(directory, name), encoding="utf-8") as file:
            record = json.load(file)
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def write(directory: str, name: str, record: Record, sync: bool = False) -> None:
    """Write a record so that a reader finds all of it or nothing."""
    partial = os.path.join(directory, f".{name}.{os.getpid()}")
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(record, file)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    os.replace(partial, os.path.join(directory, name))


def mark_run(directory: str) -> None:
    """The next line that runs is the program's."""
    with open(os.path.join(directory, "ran"), "wb"):
        pass


def has_run(directory: str) -> bool:
    """Whether a line of the program may have run."""
    return os.path.exists(os.path.join(directory, "ran"))
