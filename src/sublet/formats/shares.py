"""How the processes of one program divide the ceiling of its lease.

Each process in which TensorFlow runs has a share, and the limit of its memory pool is never above
its share. The shares are one record in the attempt's directory, `shares`, which is read and
replaced under a lock. They never add up to more than the ceiling: whoever takes more looks first,
under the lock, at what is left, and whoever gives back has lowered its pool's limit before that.

A process that has ended has no share any more, whoever killed it; the kernel opens its lock.
Processes whose limit cannot be moved are the exception: each has the whole ceiling, and is only
counted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from . import attempt_files
from .lease import MIB, LeaseTerms

FILE = "shares"
LEAST = 4 * MIB
"""TensorFlow does not start with a share of less."""
_LOCK = "shares.lock"
_MOST = 10_000
"""More shares than this make no sense."""
_PAUSE = 0.001
_FLOCK = struct.Struct("hhqqi4x")
"""`struct flock`: kind, whence, start, length, process."""


class Share(NamedTuple):
    """What one process may use, in bytes; 0 while it waits for a share to begin with."""

    pid: int
    start: int
    """When the process was started, in clock ticks after boot: numbers are used again."""
    limit: int
    fixed: bool = False
    """Whether its pool's limit cannot be moved."""


class Shares:
    """The shares of the processes that live. To be had from `locked`."""

    def __init__(self, directory: str, borrowed: bool = False) -> None:
        self._directory = directory
        self.borrowed = borrowed
        """Whether the lock is that of a process that stands still."""
        self._by_pid = {share.pid: share for share in read(directory)}

    def __len__(self) -> int:
        return len(self._by_pid)

    def get(self, pid: int) -> Share | None:
        return self._by_pid.get(pid)

    def others(self, pid: int) -> list[Share]:
        """Those of all processes but this one."""
        return [share for share in self._by_pid.values() if share.pid != pid]

    @property
    def claims(self) -> list[int]:
        """The processes that wait for a share to begin with."""
        return [share.pid for share in self._by_pid.values() if not share.limit]

    @property
    def given(self) -> int:
        """What they add up to, less those that are only counted."""
        return given(self._by_pid.values())

    def put(self, share: Share) -> None:
        """Give a process this share instead of the one that it had. Raises OSError if that cannot
        be written: then nothing has changed."""
        self._write({**self._by_pid, share.pid: share})

    def remove(self, pid: int) -> None:
        """This process has no share, and does not wait for one."""
        self._write({other: share for other, share in self._by_pid.items() if other != pid})

    def _write(self, changed: dict[int, Share]) -> None:
        record = {"shares": [list(one) for one in changed.values()]}
        attempt_files.write(self._directory, FILE, record)
        self._by_pid = changed


def total(lease: LeaseTerms) -> int:
    """What the shares of a lease may add up to: its ceiling as the broker has named it last, less
    what the program has lent."""
    ceiling = attempt_files.read_ceiling(lease.dir)
    most = max(lease.ceiling, lease.most)
    return ceiling if ceiling is not None and 0 < ceiling <= most else lease.ceiling


def given(shares: Iterable[Share]) -> int:
    """What these shares add up to, less those that are only counted."""
    return sum(share.limit for share in shares if not share.fixed)


def read(directory: str) -> list[Share]:
    """The shares of the processes that live, in the order in which they came."""
    found = (attempt_files.read(directory, FILE) or {}).get("shares")
    if not isinstance(found, list) or len(found) > _MOST or not all(map(_is_share, found)):
        return []
    return [share for one in found if start_time((share := Share(*one)).pid) == share.start]


@contextlib.contextmanager
def locked(
    directory: str, patience: float = 0.0, stopped: Collection[int] = ()
) -> Iterator[Shares]:
    """The shares, which nobody else changes meanwhile. Raises OSError if somebody else has the lock
    for longer than so many seconds, or if the directory is gone. If it is one of the `stopped`
    processes that has the lock, nobody else can have it either: then it is done without. When such
    a process goes on, it changes its own share only, to what its pool is held to."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    with _one_thread:
        descriptor = os.open(os.path.join(directory, _LOCK), flags, 0o600)
        try:
            # A lock of this process, which a child does not inherit with the descriptor.
            borrowed = False
            try:
                _lock(descriptor, time.monotonic() + patience)
            except (BlockingIOError, PermissionError):
                borrowed = _holder(descriptor) in stopped
                if not borrowed:
                    raise
            yield Shares(directory, borrowed)
        finally:
            os.close(descriptor)


def start_time(pid: int) -> int | None:
    """When a process was started, in clock ticks after boot; None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


_one_thread = threading.Lock()
"""Locks of files do not keep the threads of one process apart."""


def _forked() -> None:
    global _one_thread
    _one_thread = threading.Lock()


os.register_at_fork(after_in_child=_forked)


def _lock(descriptor: int, until: float) -> None:
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except (BlockingIOError, PermissionError):
            if time.monotonic() >= until:
                raise
        time.sleep(_PAUSE)


def _holder(descriptor: int) -> int:
    """The process that has the lock; 0 if none has it."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    return 0 if kind == fcntl.F_UNLCK else int(pid)


def _is_share(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 4
        and all(type(number) is int and 0 <= number < 1 << 60 for number in value[:3])
        and 0 < value[0] < 1 << 31
        and type(value[3]) is bool
    )
