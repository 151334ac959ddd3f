"""Keeps TensorFlow's memory pool at the ceiling of the lease, which the broker moves while it runs.

The broker names a new ceiling in the attempt's directory (`attempt_files.write_ceiling`), and sends
it through a FIFO, too, where an allocation waits for it. This process sets it, gives back what an
allocation did not need, and notes the limit that is in force.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time

from ..formats import attempt_files, inotify
from ..formats.lease import LeaseTerms
from ..formats.lease_environment import DUMP, is_ours
from . import allocator
from .pool_limit import PoolLimit, high

_TAKES = 0.25
"""Seconds in which an allocation that has waited takes what it was given."""
_WAKES = 0.05
"""Seconds after which it is woken again: one that was just about to wait has not heard it."""
_FOLLOWS = 0.002
"""Seconds in which what comes through a FIFO has come, once the file names it."""
_UNWATCHED = 0.1
"""Seconds between looks at the directory where the system has no more watchers to give."""


def asked(lease: LeaseTerms) -> int | None:
    """The ceiling that the broker has named since the start; None if there is no valid one."""
    ceiling = attempt_files.read_ceiling(lease.dir)
    most = max(lease.ceiling, lease.most)
    return ceiling if ceiling is not None and 0 < ceiling <= most else None


class Ceiling:
    """The ceiling of this process; `follow` and `wait` are for one thread."""

    def __init__(self, lease: LeaseTerms) -> None:
        """To be made when the runtime has started, and while nothing else allocates."""
        self._lease = lease
        self.limit = allocator.limit(lease)
        self._stamp = self._file()
        self._raises = 0
        self._watch: inotify.DirectoryWatch | None = None
        self._pool = PoolLimit.find(lease, self.limit)
        self._taken = 0 if self._pool is None else self._pool.pool
        self.elastic = (
            self._pool is not None
            and lease.elastic
            and self.limit == lease.ceiling_mib << 20
            and is_ours(os.environ.get(DUMP), lease)
        )
        if self.elastic:
            self._arm()
            with contextlib.suppress(OSError):
                self._watch = inotify.DirectoryWatch(lowest=high())
                self._watch.watch(lease.dir)

    @property
    def pool(self) -> tuple[int, int] | None:
        """What the pool has taken, and its limit at this moment; None if neither can be seen."""
        return None if self._pool is None else (self._pool.pool, self._pool.limit)

    def wait(self, seconds: float) -> None:
        """Wait so long, or until something has happened to the ceiling."""
        if self._watch is None or not self._watch.is_open:
            self._watch = None
            threading.Event().wait(min(seconds, _UNWATCHED) if self.elastic else seconds)
            return
        poll = select.poll()
        poll.register(self._watch.fileno(), select.POLLIN)
        poll.poll(seconds * 1000)
        if self._watch.is_open:
            self._watch.changes()

    def follow(self) -> bool:
        """Set a new ceiling, if there is one; whether the limit may have changed."""
        if self._pool is None:
            return False
        stamp = self._file()
        if stamp != self._stamp and self.elastic:
            time.sleep(_FOLLOWS)
        # Counted before the limit is read: what comes in between is noted with the next raise.
        received = self._pool.take_raises()
        self._raises += received
        raised = received > 0
        if not raised and stamp == self._stamp:
            self._taken = self._pool.pool
            return False
        self._stamp = stamp
        wanted = asked(self._lease)
        if wanted is not None and wanted != self._pool.limit:
            raised = raised or wanted > self._pool.limit
            self._pool.move(wanted)
            self._pool.ring()
        if self.elastic:
            self._arm()
        if raised:
            self._give_back()
        self._taken = self._pool.pool
        self.limit = self._pool.limit
        with contextlib.suppress(OSError):
            noted = attempt_files.Limit(self.limit, self._raises)
            attempt_files.write_limit(self._lease.dir, os.getpid(), noted)
        return True

    def _arm(self) -> None:
        assert self._pool is not None
        with contextlib.suppress(OSError):
            self._pool.arm(self._lease.dir)

    def _give_back(self) -> None:
        """Let the allocation that waited have what it needs, and give the rest back."""
        assert self._pool is not None
        until = time.monotonic() + _TAKES
        wakes = time.monotonic() + _WAKES
        while self._pool.pool <= self._taken and self._dumps():
            if time.monotonic() > until:
                return  # It was not enough: it goes on waiting, and may get more.
            if time.monotonic() > wakes:
                self._pool.ring()
                wakes += _WAKES
            time.sleep(0.005)
        self._pool.move(self.limit)
        # What has succeeded in the end is not to look like a failure.
        for path in self._dumps():
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _dumps(self) -> list[str]:
        """What is left of allocations of this process that did not fit."""
        names = os.listdir(self._lease.dir)
        mine = [name for name in names if attempt_files.dumped_by(name) == os.getpid()]
        return [os.path.join(self._lease.dir, name) for name in mine]

    def _file(self) -> tuple[int, int] | None:
        """Which file names the ceiling; another one when a new ceiling was named."""
        try:
            found = os.stat(os.path.join(self._lease.dir, attempt_files.CEILING))
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns
