"""Hears of files that come to or leave a directory, from the kernel (inotify).

Standard library only: a program's own process watches its directory, and the broker watches all.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from typing import NamedTuple

_MOVED_TO, _CREATE, _DELETE = 0x80, 0x100, 0x200
_ONLY_DIRECTORIES = 0x01000000
_OVERFLOW = 0x4000
_HEAD = struct.Struct("iIII")


class Change(NamedTuple):
    """A file that has come to a watched directory, or left it."""

    watch: int
    """The number that `watch` gave the directory; -1 if changes were lost: look at all of them."""
    name: str
    here: bool


class DirectoryWatch:
    """Watches directories. `fileno` can be read when there are changes.

    Raises OSError if the user has no more watchers: the system gives each user 128.
    """

    def __init__(self, lowest: int = 0) -> None:
        """`lowest` is the least number that its descriptor may have."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
        if lowest:
            low = self._fd
            self._fd = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, lowest)
            os.close(low)

    def fileno(self) -> int:
        return self._fd

    @property
    def is_open(self) -> bool:
        """Whether the descriptor is still this watch: a program may have closed all that it does
        not know, and opened others."""
        try:
            return os.readlink(f"/proc/self/fd/{self._fd}") == "anon_inode:inotify"
        except OSError:
            return False

    def watch(self, directory: str) -> int:
        """Begin to watch a directory; returns the number that its changes carry."""
        mask = _MOVED_TO | _CREATE | _DELETE | _ONLY_DIRECTORIES
        return self._call("inotify_add_watch", self._fd, os.fsencode(directory), mask)

    def unwatch(self, number: int) -> None:
        """Stop watching. A directory that was removed is not watched any more, and no error."""
        self._libc.inotify_rm_watch(self._fd, number)

    def changes(self) -> list[Change]:
        """What has happened since the last call; never waits."""
        found: list[Change] = []
        while True:
            try:
                data = os.read(self._fd, 64 * 1024)
            except BlockingIOError:
                return found
            at = 0
            while at < len(data):
                watch, mask, _, length = _HEAD.unpack_from(data, at)
                at += _HEAD.size
                name = os.fsdecode(data[at : at + length].rstrip(b"\0"))
                at += length
                if mask & _OVERFLOW or (name and mask & (_MOVED_TO | _CREATE | _DELETE)):
                    found.append(Change(watch, name, not mask & _DELETE))

    def close(self) -> None:
        if self.is_open:
            os.close(self._fd)
        self._fd = -1

    def __del__(self) -> None:
        # A user has few of them, and a broker that ends in a test leaves one behind.
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def _call(self, name: str, *arguments: object) -> int:
        result: int = getattr(self._libc, name)(*arguments)
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result
