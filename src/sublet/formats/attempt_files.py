"""The files in an attempt's directory, which a later broker finds whoever was killed meanwhile.

    job.json      the broker's note of the job
    spec.json     what to run, written by the broker
    claim         who owns the attempt: made once, by the keeper, or by a broker that gave it up
    worker.json   the worker's identity, written before it is let go
    fresh.json    why a worker that was forked warm has become a fresh interpreter
    ran           made by the worker just before its program's first line
    ceiling       a new ceiling in bytes, named by the broker while the program runs
    raise-P-N     a FIFO of process P: eight bytes written to it are the new limit of its pool
    shares        how the processes of the program divide the ceiling (`shares.py`)
    dump-P_*      left by TensorFlow's allocator in process P each time an allocation does not fit
    fence         what the processes may hold of a GPU, and what they do (`fence_file`)
    profile/      orders to record the program (`profile_order`)
    ahead-P-B-T   process P wants B bytes more before an allocation needs them, since T
    lack-P-N-B    there while an allocation of process P waits for B bytes, which the fence lacks
    error-P.json  the exception that has ended process P (`last_error`)
    events-P.json where process P writes event files for TensorBoard (`event_logs`)
    exit.json     how it ended, written after the last process of the tree was seen to end
    reaped.json   how the worker ended, by whoever collected it after its keeper was killed
    keeper.sock   where a later broker finds the keeper

An attempt without `ran` whose processes are gone has not run a line of the program.

The program can write here, too. So a record that makes no sense counts as missing, and no record is
proof that a living process has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from typing import Any

Record = dict[str, Any]
_LARGEST = 64 << 20
"""Bytes of a record; the largest holds a job's whole environment."""
FRESH = "fresh.json"
CEILING = "ceiling"
RAISE = "raise-"
DUMP = "dump-"
KEPT_DUMPS = 32
"""Of so many a process keeps the newest: at its ceiling it may leave one with every retry."""
LACK = "lack-"
AHEAD = "ahead-"


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
    """One of the records; None if it is missing, incomplete, or not a record."""
    try:
        # O_NONBLOCK: the open of a pipe would wait.
        descriptor = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
                return None
            record = json.loads(file.read(_LARGEST))
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def is_number(value: Any, least: float, most: float) -> bool:
    """Whether a value from a record or a packet is a number within these bounds."""
    return type(value) in (int, float) and least <= value <= most


def is_process(value: object) -> bool:
    """Whether a value identifies a process: by its number and its start time."""
    return isinstance(value, dict) and all(
        type(value.get(name)) is int and 0 <= value[name] < 1 << 63 for name in ("pid", "start")
    )


def write(directory: str, name: str, record: Record, sync: bool = False) -> None:
    """Write a record so that a reader finds all of it or nothing."""
    partial = os.path.join(directory, f".{name}.{os.getpid()}")
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(record, file)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    os.replace(partial, os.path.join(directory, name))


def write_reaped(directory: str, pid: int, status: int) -> None:
    """Note how a worker without a keeper has ended."""
    with contextlib.suppress(OSError):
        write(directory, "reaped.json", {"pid": pid, "status": status}, sync=True)


def read_reaped(directory: str, pid: int) -> int | None:
    """The waitpid status of this worker; None if nobody has noted it."""
    record = read(directory, "reaped.json") or {}
    status = record.get("status")
    return status if record.get("pid") == pid and is_status(status) else None


def is_status(value: object) -> bool:
    """Whether a value could come from waitpid."""
    return type(value) is int and 0 <= value < 1 << 16


def mark_run(directory: str) -> None:
    """Note that something of the program may run from here on."""
    with open(os.path.join(directory, "ran"), "wb"):
        pass


def has_run(directory: str) -> bool:
    """Whether a line of the program may have run; nobody knows once the directory is gone."""
    return os.path.exists(os.path.join(directory, "ran")) or not os.path.isdir(directory)


def write_ceiling(directory: str, ceiling: int) -> None:
    """Name a new ceiling for the program of this attempt."""
    path = os.path.join(directory, CEILING)
    with open(f"{path}.new", "w", encoding="ascii") as file:
        file.write(str(ceiling))
    os.replace(f"{path}.new", path)


def has_ceiling(directory: str) -> bool:
    """Whether a new ceiling was ever named for this attempt."""
    return os.path.exists(os.path.join(directory, CEILING))


def read_ceiling(directory: str) -> int | None:
    """The new ceiling of this attempt; None if none was named."""
    try:
        with open(os.path.join(directory, CEILING), encoding="ascii") as file:
            return int(file.read(32))
    except (OSError, ValueError):
        return None


def raise_fifo(directory: str, pid: int, number: int) -> str:
    """The path of a FIFO through which the limit of a process can be raised, once."""
    return os.path.join(directory, f"{RAISE}{pid}-{number}")


def raise_fifos(directory: str, pid: int) -> list[str]:
    """The FIFOs that a process offers, in the order in which it made them."""
    prefix = f"{RAISE}{pid}-"
    try:
        names = [name for name in os.listdir(directory) if name.startswith(prefix)]
    except OSError:
        return []
    numbered = [
        (int(digits), name) for name in names if (digits := name[len(prefix) :]).isdecimal()
    ]
    return [os.path.join(directory, name) for _, name in sorted(numbered)]


def send_limit(fifo: str, limit: int) -> bool:
    """Raise a limit through one of these; False if nobody reads it any more."""
    try:
        descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return False
        return os.write(descriptor, limit.to_bytes(8, "little")) == 8
    except OSError:
        return False
    finally:
        os.close(descriptor)


def dump_prefix(directory: str, pid: int) -> str:
    """How the paths begin of what the allocator of a process leaves when memory is lacking."""
    return os.path.join(directory, f"{DUMP}{pid}")


def dumped_by(name: str) -> int | None:
    """The process whose allocator has left the file of this name; None if it is no such file."""
    digits, underscore, _ = name.removeprefix(DUMP).partition("_")
    found = name.startswith(DUMP) and underscore and digits.isascii() and digits.isdigit()
    return int(digits) if found and len(digits) < 10 else None


def lack(name: str) -> tuple[int, int] | None:
    """The process whose fence has left the file of this name, and the bytes that it lacks; None if
    it is no such file."""
    numbers = _numbers(name, LACK, 3)
    return (numbers[0], numbers[2]) if numbers else None


def ahead_file(directory: str, pid: int, amount: int, at: float) -> str:
    """The file by which a process asks for memory before it needs it, at this time."""
    return os.path.join(directory, f"{AHEAD}{pid}-{amount}-{int(at * 1e6)}")


def ahead(name: str) -> tuple[int, int, float] | None:
    """The process that has left the file of this name, how much it asks for ahead of need, and when
    it did, by the wall clock; None if it is no such file."""
    numbers = _numbers(name, AHEAD, 3)
    return (numbers[0], numbers[1], numbers[2] / 1e6) if numbers else None


def _numbers(name: str, prefix: str, count: int) -> list[int]:
    """The numbers of a name like `lack-12-0-4096`; empty if it is not of that form."""
    words = name.removeprefix(prefix).split("-")
    if not name.startswith(prefix) or len(words) != count or len(name) > 60:
        return []
    if not all(word.isascii() and word.isdigit() for word in words):
        return []
    return [int(word) for word in words]


def dump_time(name: str) -> float | None:
    """When it was left, in seconds by the wall clock: `dump-<pid>_<allocator>.<microseconds>`."""
    digits = name.rpartition(".")[2]
    if dumped_by(name) is None or not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        return None
    return int(digits) / 1e6
