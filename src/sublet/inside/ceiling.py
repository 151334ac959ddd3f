"""Keeps TensorFlow's memory pool at this process's share of the ceiling of the lease.

The broker names a new ceiling in the attempt's directory (`attempt_files.write_ceiling`), and where
an allocation waits it sends a larger share through a FIFO. This process gives back what an
allocation did not need, and what it has not taken itself if another process of the program lacks
memory; alone, it has all of the ceiling. Its share is in the record `formats.shares`.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time

from ..formats import attempt_files, inotify, shares
from ..formats.lease import MIB, LeaseTerms
from ..formats.lease_environment import DUMP, is_ours
from ..formats.shares import Share
from . import allocator
from .first_share import is_python_child
from .pool_limit import MORE_SHOTS, SHOTS, PoolLimit, high

_TAKES = 0.25
"""Seconds in which an allocation that has waited takes what it was given."""
_WAKES = 0.05
"""Seconds after which it is woken again: one that was just about to wait has not heard it."""
_SOON = 0.005
"""Seconds in which what was sent through a FIFO has arrived."""
_UNWATCHED = 0.1
"""Seconds between looks at the directory where the system has no more watchers to give."""
_WATCHERS = 8
"""So many processes of a program take one: the system gives each user 128."""
_PATIENCE = 1.0
"""Seconds to wait for the shares while others change them."""
_SEEN = 0.5
"""Seconds in which the broker has seen a file, also where the system has no watchers left."""
_REGION = 32 * MIB
"""What a pool takes at a time while there are other processes: to them it is lost."""
_LACKS = 10.0
"""Seconds that an allocation waits for memory."""
_AHEAD = 256 * MIB
"""What a pool on a GPU has left of its limit, or a quarter of what it has taken if that is more.
XLA, when it compiles a function there, tries out each kernel on copies of its tensors, with 16 MiB
around each of them, and does not wait for that memory: no raise would come in time."""


class Ceiling:
    """The ceiling of this process; `follow` and `wait` are for one thread."""

    def __init__(self, lease: LeaseTerms, share: int, region: int) -> None:
        """To be made when the runtime has started with this share, and while nothing else
        allocates. `region` is the size of the region that was primed."""
        self._lease = lease
        self.limit = allocator.limit(lease, share)
        self.siblings: tuple[int, ...] = ()
        """The other processes of the program that have shares."""
        self._wish = self.limit if self.limit < share // MIB * MIB else None
        """What the user has set, if that is less than the share."""
        self._seen: tuple[tuple[int, int] | None, ...] | None = None
        self._raised = self._soon = False
        self._raised_at = 0.0
        """When a raise was last noticed."""
        self._satisfied_at = 0.0
        """When an allocation that had waited was last seen to have what it needs."""
        self._watch: inotify.DirectoryWatch | None = None
        self._asked, self._asked_at, self._wants = "", 0.0, 0
        """The file by which more was asked for ahead of need, when, and how much."""
        self._pool = PoolLimit.find(lease, self.limit, region)
        self._taken = 0 if self._pool is None else self._pool.pool
        self._is_child = is_python_child(lease)
        self._one_piece = allocator.is_one_piece(lease) and not self._is_child
        self.can_be_raised = (
            self._pool is not None and self._wish is None and is_ours(os.environ.get(DUMP), lease)
        )
        """Whether others can raise the limit."""
        if self._pool is None:
            if self._one_piece:
                allocator.prime_rest(lease)
            self._note_fixed()
            return
        self._meet([one.pid for one in shares.read(lease.dir) if one.pid != os.getpid()])
        if self._one_piece and not self.siblings and not self._pool.takes_regions:
            allocator.prime_rest(lease)

    @property
    def pool(self) -> tuple[int, int] | None:
        """What the pool has taken, and its limit at this moment; None if neither can be seen."""
        return None if self._pool is None else (self._pool.pool, self._pool.limit)

    def wait(self, seconds: float) -> None:
        """Wait for this long, or until the ceiling may have changed."""
        if self._soon:
            seconds = _SOON
        if self._watch is None or not self._watch.is_open:
            self._watch = None
            awaits = self._pool is not None and (self._lease.elastic or self.siblings)
            threading.Event().wait(min(seconds, _UNWATCHED) if awaits else seconds)
            return
        poll = select.poll()
        poll.register(self._watch.fileno(), select.POLLIN)
        poll.poll(seconds * 1000)
        if self._watch.is_open:
            self._watch.changes()

    def follow(self) -> bool:
        """Set the limit to the current ceiling; returns whether it may have changed."""
        if self._pool is None:
            return False
        self._tidy()
        self._take_raises()
        self._ask_ahead()
        stamps = tuple(self._stamp(name) for name in (attempt_files.CEILING, shares.FILE))
        if not (self._raised or self._soon or self.siblings) and stamps == self._seen:
            self._taken = self._pool.pool
            return False
        if self._raised:
            self._arm()  # At once: the next allocation may hold Python's lock.
        satisfied = self._raised and self._has_taken()
        try:
            with shares.locked(self._lease.dir, _PATIENCE) as table:
                self._soon = self._take_raises() or self._pool.in_flight
                if self._soon:
                    # For an allocation that has waited since: it has taken nothing of this one.
                    self._raised, self._taken = True, self._pool.pool
                    return False
                self._agree(table, satisfied)
        except OSError:
            self._soon = True
            return False
        if satisfied:
            self._satisfied_at = time.time()
        self._raised, self._seen = False, stamps
        self._taken, self.limit = self._pool.pool, self._pool.limit
        return True

    @property
    def _spare(self) -> int:
        """What the pool is to have left of its limit."""
        if self._pool is None or not self._lease.on_gpu:
            return 0
        return max(_AHEAD, self._pool.pool // 4)

    def _ask_ahead(self) -> None:
        """Ask for more before an allocation needs it, if little is left."""
        assert self._pool is not None
        asked, self._asked = self._asked, ""
        spare, left = self._spare, self._pool.limit - self._pool.pool
        if (
            left < spare / 2
            and self.can_be_raised
            and not self.siblings
            and self._pool.limit < self._lease.most
        ):
            want, now = spare - left, time.time()
            if asked and want == self._wants and now - self._asked_at < _LACKS:
                self._asked = asked
                return
            self._wants, self._asked_at = want, now
            self._asked = attempt_files.ahead_file(self._lease.dir, os.getpid(), want, now)
        if asked:
            with contextlib.suppress(OSError):
                os.unlink(asked)
        if self._asked:
            with contextlib.suppress(OSError), open(self._asked, "wb"):
                pass

    def freeze(self) -> None:
        """In a forked child, which has a copy of its parent's pool: let it take no more."""
        if self._pool is not None:
            self._pool.move(0)

    def _take_raises(self) -> bool:
        """Whether the limit was raised since this was last asked."""
        assert self._pool is not None
        raised = self._pool.take_raises() > 0
        if raised:
            self._raised, self._raised_at = True, time.time()
        return raised

    def _tidy(self) -> None:
        """Remove what is left of allocations that have succeeded in the end: it is not to look like
        a failure. But not before the broker has seen it: the next one may wait already."""
        if self._satisfied_at and time.time() - self._satisfied_at > _SEEN:
            for path in self._dumps((os.getpid(),), until=self._satisfied_at):
                with contextlib.suppress(OSError):
                    os.unlink(path)
            self._satisfied_at = 0.0

    def _agree(self, table: shares.Shares, satisfied: bool) -> None:
        """Find the limit that this process is to have, and change limit and share together."""
        assert self._pool is not None
        pid, before = os.getpid(), self._pool.limit
        others, mine = table.others(pid), table.get(pid)
        total = shares.total(self._lease)
        limit = self._pool.limit if mine is None else mine.limit
        if satisfied:
            # On a GPU it keeps what it would ask for again at once.
            limit = max(self.limit, min(limit, self._pool.pool + self._spare))
        if not others:
            limit = max(limit, self._lease.ceiling)
        elif self._must_give(total - table.given, others):
            # Something to go on with, but nothing where there are many.
            limit = min(limit, self._pool.pool + total // (16 * len(others) + 16))
        limit = min(limit, total - shares.given(others), self._wish or limit)
        limit = max(limit // MIB * MIB, -(-self._pool.pool // MIB) * MIB)
        start = shares.start_time(pid) or 0
        if self._pool.limit != before:
            # Raised meanwhile: an allocation had Python's lock, and this thread stood still.
            limit = self._pool.limit
        if limit > self._pool.limit:
            table.put(Share(pid, start, limit))
            self._pool.move(limit)
            self._pool.ring()
        elif (share := Share(pid, start, self._pool.move(limit))) != mine:
            table.put(share)
        self._meet([one.pid for one in others])

    def _must_give(self, free: int, others: list[Share]) -> bool:
        """Whether another process lacks memory, and there is none that is free."""
        if free >= shares.LEAST:
            return False
        lately = time.time() - _LACKS
        return any(not one.limit for one in others) or bool(
            self._dumps(tuple(one.pid for one in others), lately)
        )

    def _meet(self, pids: list[int]) -> None:
        """These are the other processes that have shares now."""
        assert self._pool is not None
        self.siblings = tuple(pids)
        if self.siblings or self._is_child:
            self._pool.take_regions_of(_REGION)
        elif self._one_piece:
            self._pool.take_regions_of(self._pool.limit)
        self._arm()

    def _arm(self) -> None:
        assert self._pool is not None
        if not self._lease.elastic and not self.siblings:
            return
        if self._watch is None and len(self.siblings) < _WATCHERS:
            with contextlib.suppress(OSError):
                self._watch = inotify.DirectoryWatch(lowest=high())
                self._watch.watch(self._lease.dir)
        if self.can_be_raised:
            with contextlib.suppress(OSError):
                self._pool.arm(self._lease.dir, MORE_SHOTS if self.siblings else SHOTS)

    def _note_fixed(self) -> None:
        """Have others know that this pool cannot be moved."""
        share = Share(os.getpid(), shares.start_time(os.getpid()) or 0, self.limit, True)
        with contextlib.suppress(OSError), shares.locked(self._lease.dir, _PATIENCE) as table:
            table.put(share)

    def _has_taken(self) -> bool:
        """Let the allocation that waited have what it needs; whether it was enough."""
        assert self._pool is not None
        until = time.monotonic() + _TAKES
        wakes = time.monotonic() + _WAKES
        while self._pool.pool <= self._taken:
            if time.monotonic() > until:
                # What goes on waiting has tried again since, and left a file. Else it had what it
                # needs before this thread looked, or got what others have freed.
                return not self._dumps((os.getpid(),), since=self._raised_at)
            if time.monotonic() > wakes:
                self._pool.ring()
                wakes += _WAKES
            time.sleep(0.005)
            if self._take_raises():
                until = time.monotonic() + _TAKES
            self._arm()
        return True

    def _dumps(
        self, pids: tuple[int, ...], since: float = 0.0, until: float = math.inf
    ) -> list[str]:
        """What is left of allocations of these processes that did not fit, of that time."""
        return [
            os.path.join(self._lease.dir, name)
            for name in os.listdir(self._lease.dir)
            if attempt_files.dumped_by(name) in pids
            and since <= (attempt_files.dump_time(name) or 0.0) <= until
        ]

    def _stamp(self, name: str) -> tuple[int, int] | None:
        """Which file has this name now; another one when it was written anew."""
        try:
            found = os.stat(os.path.join(self._lease.dir, name))
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns
