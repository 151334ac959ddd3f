"""Measures once a second what a process of a leased program uses, and keeps its usage file.

Its thread also applies a new ceiling, and reports devices that the program names too late. It never
starts the runtime, and never raises into the program.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import sys
import threading
import time
from typing import Any

from ..formats import attempt_files, lease_environment, profile_order, shares, usage_file
from ..formats.lease import LeaseTerms
from ..formats.usage_file import Reading
from . import allocator, current_lease
from .card import Card
from .ceiling import Ceiling

_FIRST_PAUSES = (0.05,) * 20 + (0.2,) * 10
"""Readings are frequent at first, because a child that is killed, as those of a pool are, leaves no
last reading. One takes 50 µs."""
_PAUSE = 1.0
_PAUSE_BESIDE = 0.25
"""The same where there are other processes: their peaks are added up as they are at one time."""
_CARD_PAUSE = 0.5
"""Seconds between two looks at the GPU, which the driver takes part in."""


class UsageWriter:
    """Writes the usage file. Every change is one write of the whole record, so a reader sees the
    record before or after it. The file is opened each time, because a program may close descriptors
    that it does not know."""

    def __init__(self, lease: LeaseTerms, pid: int) -> None:
        self.lease = lease
        self.pid = pid
        self._path = os.path.join(lease.dir, f"{usage_file.PREFIX}{pid}")
        self._lock = threading.Lock()
        self._reading = Reading(pid, 0, 0, 0, 0, 0, 0, 0, 0, None)
        self.ceiling: Ceiling | None = None
        """What the broker moves; None until the runtime has started."""
        self.card: Card | None = None
        """The GPU of the lease; None on the CPU, or where the driver does not show it."""
        self._card_due = 0.0

    @property
    def reading(self) -> Reading:
        return self._reading

    def note(self, **changes: int) -> None:
        with self._lock:
            self._replace(**changes)

    def note_usage(self) -> None:
        # Asking would start the runtime, in a process that has got no share for example.
        cards = allocator.card_usage(self.lease) if self._reading.runtime_started_ns else None
        if not cards:
            return
        with self._lock:
            before = self._reading.cards or ((0, self._reading.peak),) * len(cards)
            used = tuple(
                (current, max(peak, earlier))
                for (current, peak), (_, earlier) in zip(cards, before, strict=True)
            )
            peak = max(peak for _, peak in used)
            grew = peak > self._reading.peak
            self._replace(
                current=max(current for current, _ in used),
                peak=peak,
                cards=used if len(used) > 1 else (),
            )
        # Whoever has a new peak adds up all of them, when its own can be read by the others.
        others = self._peaks_of_siblings() if grew else 0
        if others:
            with self._lock:
                self._replace(tree=max(self._reading.tree, self._reading.peak + others))

    def _peaks_of_siblings(self) -> int:
        """What the other processes of the program that live have used at most."""
        if self.ceiling is None or not self.ceiling.siblings:
            return 0
        pids = [share.pid for share in shares.read(self.lease.dir) if share.pid != self.pid]
        readings = (usage_file.read_process(self.lease.dir, pid) for pid in pids)
        return sum(reading.peak for reading in readings if reading is not None)

    def note_outside(self, last: bool = False) -> None:
        """Note what this process holds of the GPU beside its pool: the context, and what libraries
        have taken of the driver. Believed only if the pool has not grown meanwhile."""
        if self.card is None or self.ceiling is None or (pool := self.ceiling.pool) is None:
            return
        if time.monotonic() < self._card_due and not last:
            return
        self._card_due = time.monotonic() + _CARD_PAUSE
        held = self.card.held().get(self.pid, 0)
        again = self.ceiling.pool
        if again is not None and pool[0] == again[0] < held:
            self.note(outside=max(held - pool[0], self._reading.outside))

    def follow_ceiling(self) -> None:
        """Apply a new ceiling that the broker has named."""
        if self.ceiling is not None and self.ceiling.follow():
            self.note(limit=self.ceiling.limit)

    def note_failure(self, asked: int) -> None:
        with self._lock:
            self._replace(failures=self._reading.failures + 1, asked=asked or self._reading.asked)

    def _replace(self, **changes: Any) -> None:
        now = time.monotonic_ns()
        self._reading = dataclasses.replace(self._reading, updated_ns=now, **changes)
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(fd, usage_file.pack(self._reading), 0)
            finally:
                os.close(fd)
        except OSError:
            # The directory is gone or full; the program continues without measurements.
            pass


_writer: UsageWriter | None = None
_sampled_pid = 0


def writer() -> UsageWriter | None:
    """The writer of this process's usage file; None without a lease. A forked child gets its own,
    and so does a process that holds another lease than before."""
    global _writer
    lease = current_lease.current()
    if lease is None:
        return None
    if _writer is None or _writer.pid != os.getpid() or _writer.lease != lease:
        _writer = UsageWriter(lease, os.getpid())
    return _writer


def mark_main_started() -> None:
    """Note that the program's own code is about to run."""
    mine = writer()
    if mine is not None:
        mine.note(main_started_ns=time.monotonic_ns())


def mark_exit(code: int) -> None:
    """Note that the program's own code has ended; measure once more if the runtime ran."""
    mine = writer()
    if mine is None:
        return
    if mine.reading.runtime_started_ns:
        mine.note_usage()
        mine.note_outside(last=True)
        _report_late(mine.lease)
    mine.note(exit_code=code)


def status_path() -> str | None:
    """The file for the exit code of this process, for code that cannot write usage files."""
    mine = writer()
    return None if mine is None else os.path.join(mine.lease.dir, f"{usage_file.STATUS}{mine.pid}")


def start(share: int, region: int) -> None:
    """Measure until the end of the process, as the runtime has started with this share of the lease
    and a primed region of this size. Once per process."""
    global _sampled_pid
    mine = writer()
    if mine is None or _sampled_pid == mine.pid:
        return
    _sampled_pid = mine.pid
    mine.ceiling = Ceiling(mine.lease, share, region)
    if mine.lease.on_gpu:
        mine.card = Card.open(mine.lease.uuid)
    allocator.forget_peak(mine.lease)
    mine.note(runtime_started_ns=time.monotonic_ns(), limit=mine.ceiling.limit)
    atexit.register(_last_reading, mine)
    # A forked child of multiprocessing runs its own finalizers and then os._exit.
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, _last_reading, args=(mine,), exitpriority=0)
    threading.Thread(target=_sample, args=(mine,), name="sublet-measure", daemon=True).start()


def _forked() -> None:
    """A child of a process in which TensorFlow runs has a copy of its pool, and no share."""
    if _writer is not None and _writer.ceiling is not None:
        _writer.ceiling.freeze()


os.register_at_fork(after_in_child=_forked)


def _sample(mine: UsageWriter) -> None:
    pauses = list(_FIRST_PAUSES)
    assert mine.ceiling is not None
    try:
        while True:
            pause = _PAUSE_BESIDE if mine.ceiling.siblings else _PAUSE
            mine.ceiling.wait(pauses.pop(0) if pauses else pause)
            _look(mine)
    except Exception:
        return  # The interpreter is being finalised.


def _look(mine: UsageWriter) -> None:
    """Take one reading. Whatever fails here, the program continues, without a message."""
    try:
        mine.note_usage()
        mine.note_outside()
        mine.follow_ceiling()
        _report_late(mine.lease)
        _prune_dumps(mine.lease)
        if profile_order.orders(mine.lease.dir):
            from .profiling import recorder

            recorder.follow(mine.lease)
    except Exception:
        return


def _last_reading(mine: UsageWriter) -> None:
    if mine.pid == os.getpid():
        mine.note_usage()
        mine.note_outside(last=True)
        _report_late(mine.lease)


def _report_late(lease: LeaseTerms) -> None:
    """Report a variable that the program has set after CUDA has read it."""
    line = lease_environment.too_late(lease, os.environ)
    if line is not None:
        current_lease.say(line)


def _prune_dumps(lease: LeaseTerms) -> None:
    """Keep the newest dumps only: a program at its ceiling may leave one with every retry."""
    try:
        dumps = [
            entry.path
            for entry in os.scandir(lease.dir)
            if attempt_files.dumped_by(entry.name) is not None
        ]
        if len(dumps) > attempt_files.KEPT_DUMPS:
            for path in sorted(dumps, key=os.path.getmtime)[: -attempt_files.KEPT_DUMPS]:
                os.unlink(path)
    except OSError:
        pass
