"""The output files of a job without a client, which its program writes itself.

Both streams of an attempt go to `<run>.log`, in the order they were written, or separately to
`<run>.out` and `<run>.err`. The files are opened for appending and given to the program, with no
process in between whose death could break its output.

The keeper bounds what a file holds on disk. The first and the latest part stay; the middle is given
back to the file system as a hole. Programs only append, so no write is raced, and every byte keeps
its offset. Where the file system cannot make holes, the file is cut back to its first part; that
loses the latest part, and what is written in the same instant. How much is lost is then written to
`<file>.cut`.

Beside each file, `<file>.times` says how long it was when: a line with the time and the size each
few seconds in which it grew.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import time
from collections.abc import Callable
from typing import NamedTuple

HEAD = 1 << 20
"""Bytes from the beginning that always stay."""
LIMIT = 64 << 20
"""Bytes that the files of one attempt hold on disk, unless the job says otherwise."""
_BLOCK = 1 << 16
_SOONEST, _LATEST = 0.01, 0.1
STAMPED = 10.0
"""Seconds between two lines of a file's times, at least."""
_KEEP_SIZE, _PUNCH_HOLE = 1, 2


class Gap(NamedTuple):
    """Bytes of a file that were dropped."""

    start: int
    size: int


def paths(directory: str, run: str, split: bool) -> list[str]:
    """The files of an attempt's output."""
    endings = ("out", "err") if split else ("log",)
    return [os.path.join(directory, f"{run}.{ending}") for ending in endings]


def open_streams(directory: str, run: str, split: bool) -> list[int]:
    """A program's three streams: nothing to read, and its files to write. The caller closes them.

    OSError if the files cannot be made.
    """
    streams = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        for path in paths(directory, run, split):
            streams.append(os.open(path, flags, 0o600))
        if not split:
            streams.append(os.dup(streams[1]))
    except OSError:
        for number in streams:
            os.close(number)
        raise
    return streams


def punch(descriptor: int, start: int, size: int) -> bool:
    """Give a part of a file back to the file system; False if it cannot make holes."""
    number = errno.EINTR
    while number == errno.EINTR:
        done = _libc.fallocate(
            ctypes.c_int(descriptor),
            ctypes.c_int(_PUNCH_HOLE | _KEEP_SIZE),
            ctypes.c_longlong(start),
            ctypes.c_longlong(size),
        )
        if done == 0:
            return True
        number = ctypes.get_errno()
    if number in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
        return False
    raise OSError(number, os.strerror(number))


class SizeLimit:
    """Bounds what some files hold on disk. `due` is when it wants its next `tick`.

    It looks more often at files that grow fast. They may exceed the limit by what a quiet program
    writes in a tenth of a second, or a busy one in some hundredths.
    """

    def __init__(
        self,
        names: list[str],
        limit: int = LIMIT,
        hole: Callable[[int, int, int], bool] = punch,
    ) -> None:
        self._each = max(4 * _BLOCK, limit // max(1, len(names)))
        self._head = min(HEAD, self._each // 4) // _BLOCK * _BLOCK
        self._hole = hole
        self._files: list[_File] = []
        for name in names:
            # A file that was removed needs no bound, and is no error.
            with contextlib.suppress(OSError):
                self._files.append(_File(name, self._head))
        self._looked = time.monotonic()
        self.due = self._looked if self._files else float("inf")

    def tick(self, now: float) -> None:
        """Look at all files, and drop the middle of those that hold too much."""
        soonest = _LATEST
        for file in self._files:
            with contextlib.suppress(OSError):
                grown = file.measure()
                if file.held > self._each:
                    # A quarter more than needed, so that it happens rarely.
                    file.drop(file.held - self._each * 3 // 4, self._hole)
                speed = grown / max(1e-3, now - self._looked)
                if speed > 0:
                    soonest = min(soonest, (self._each - file.held) / speed / 2)
                file.stamp()  # Last: on a full disk it fails.
        self._looked = now
        self.due = now + max(_SOONEST, soonest)

    def close(self) -> None:
        """Bound the files and note their sizes for the last time."""
        self.tick(time.monotonic())
        for file in self._files:
            with contextlib.suppress(OSError):
                file.stamp(last=True)
            os.close(file.descriptor)
        self._files.clear()
        self.due = float("inf")


class _File:
    def __init__(self, path: str, head: int) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self.held = 0
        self._path = path
        self._head = head
        self._size = 0
        self._stamped = (0.0, 0)
        """The time and the size that were written down last."""
        self._dropped_to = self._behind_hole(head)
        """The first byte behind the hole."""
        if self._dropped_to > head:
            # A keeper that was killed meanwhile may have made only a part of the hole.
            punch(self.descriptor, head, self._dropped_to - head)
        earlier = cut(path)
        self._lost = earlier.size if earlier is not None else 0

    def _behind_hole(self, head: int) -> int:
        """The first byte behind the hole that an earlier keeper has made."""
        try:
            hole = os.lseek(self.descriptor, 0, os.SEEK_HOLE)
            if hole == os.fstat(self.descriptor).st_size:
                return head
            return max(head, os.lseek(self.descriptor, hole, os.SEEK_DATA))
        except OSError:
            return head

    def measure(self) -> int:
        """Measure it; how much it has grown since the last time."""
        size = os.fstat(self.descriptor).st_size
        grown = max(0, size - self._size)
        self._size = size
        self.held = size if size < self._dropped_to else size - (self._dropped_to - self._head)
        return grown

    def stamp(self, last: bool = False) -> None:
        """Write down how long it is now, unless it has not grown or that was done just before."""
        now, (then, size) = time.time(), self._stamped
        if self._size == size or (not last and then <= now < then + STAMPED):
            return
        self._stamped = (now, self._size)
        times = os.open(
            f"{self._path}.times", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        try:
            os.write(times, f"{now:.0f} {self._size}\n".encode())
        finally:
            os.close(times)

    def drop(self, size: int, hole: Callable[[int, int, int], bool]) -> None:
        """Drop this many bytes more, rounded up, after those that were dropped before."""
        size = -(-size // _BLOCK) * _BLOCK
        end = min(self._dropped_to + size, self._size // _BLOCK * _BLOCK)
        if end <= self._dropped_to:
            return
        if hole(self.descriptor, self._dropped_to, end - self._dropped_to):
            self._dropped_to = end
        else:
            self._lost += os.fstat(self.descriptor).st_size - self._head
            os.truncate(self.descriptor, self._head)
            self._note()
        self.measure()

    def _note(self) -> None:
        partial = f"{self._path}.cut.{os.getpid()}"
        with open(partial, "w", encoding="ascii") as file:
            json.dump({"start": self._head, "size": self._lost}, file)
        os.replace(partial, f"{self._path}.cut")


def size_at(path: str, moment: float) -> int:
    """At most so many bytes of the file were there at this time; 0 if nothing is known."""
    size = 0
    try:
        with open(f"{path}.times", encoding="ascii") as lines:
            for line in lines:
                when, then = line.split()
                if int(when) > moment:
                    break
                size = int(then)
    except (OSError, ValueError):
        return 0
    return size


def cut(path: str) -> Gap | None:
    """What was lost because the file system cannot make holes."""
    try:
        with open(f"{path}.cut", encoding="ascii") as file:
            record = json.load(file)
        return Gap(int(record["start"]), int(record["size"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


_libc = ctypes.CDLL(None, use_errno=True)
