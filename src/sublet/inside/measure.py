"""The board: what a process of a leased program uses, in a small file that outlives it.

Owns the file `inside-<pid>` in the attempt's directory and the thread that keeps it fresh, which
also tells the program of devices that it names too late. One process writes one board; anybody may
read all of them. Never starts TensorFlow's runtime, and
never raises into the program.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import struct
import sys
import threading
import time

from . import environment, pool, trim
from . import lease as leases
from .lease import Lease

VERSION = 1
PREFIX = "inside-"
_STATUS = "status-"
_EXIT = struct.Struct("<i")

_LAYOUT = struct.Struct("<10q")
_FIRST_PAUSES = (0.05,) * 20 + (0.2,) * 10
"""A child that is killed, as those of a pool are at its end, leaves no last reading: one that lived
for less than a second must not be taken for one that used nothing. A reading takes 50 µs."""
_PAUSE = 1.0
_KEPT_DUMPS = 32


@dataclasses.dataclass(frozen=True)
class Reading:
    """One board as it stood. Times are CLOCK_MONOTONIC in ns, sizes are bytes, 0 is not yet."""

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


class Board:
    """The writing side. Every change is one write of the whole record, so that a reader sees the
    record before or after it; the file is opened anew each time, because a program may close
    descriptors that it does not know."""

    def __init__(self, lease: Lease, pid: int) -> None:
        self.lease = lease
        self.pid = pid
        self._path = os.path.join(lease.dir, f"{PREFIX}{pid}")
        self._lock = threading.Lock()
        self._reading = Reading(pid, 0, 0, 0, 0, 0, 0, 0, 0, None)

    @property
    def reading(self) -> Reading:
        return self._reading

    def note(self, **changes: int) -> None:
        with self._lock:
            self._replace(**changes)

    def note_usage(self) -> None:
        used = pool.usage(self.lease)
        if used is None:
            return
        with self._lock:
            self._replace(current=used[0], peak=max(used[1], self._reading.peak))

    def follow_ceiling(self) -> None:
        """Take on a new ceiling that the broker has named; the board's limit says that it holds, or
        on a GPU that it was heard."""
        ceiling = trim.asked(self.lease)
        if ceiling is None or ceiling == self._reading.limit:
            return
        if trim.hold(self.lease, ceiling, self._reading.peak) or self.lease.on_gpu:
            self.note(limit=ceiling)

    def note_failure(self, asked: int) -> None:
        with self._lock:
            self._replace(failures=self._reading.failures + 1, asked=asked or self._reading.asked)

    def _replace(self, **changes: int) -> None:
        now = time.monotonic_ns()
        self._reading = dataclasses.replace(self._reading, updated_ns=now, **changes)
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(fd, _pack(self._reading), 0)
            finally:
                os.close(fd)
        except OSError:
            # The directory is gone or full: the program goes on unmeasured.
            pass


_board: Board | None = None
_sampled_pid = 0


def board() -> Board | None:
    """The board of this process, None without a lease. A forked child gets one of its own, and so
    does a process that has given its lease back and holds another."""
    global _board
    lease = leases.current()
    if lease is None:
        return None
    if _board is None or _board.pid != os.getpid() or _board.lease != lease:
        _board = Board(lease, os.getpid())
    return _board


def mark_main_started() -> None:
    """The program's own code is about to run."""
    mine = board()
    if mine is not None:
        mine.note(main_started_ns=time.monotonic_ns())


def mark_exit(code: int) -> None:
    """The program's own code has ended; a last reading is taken if the runtime ran."""
    mine = board()
    if mine is None:
        return
    if mine.reading.runtime_started_ns:
        mine.note_usage()
        _answer_late(mine.lease)
    mine.note(exit_code=code)


def status_path() -> str | None:
    """Where the exit code of this process is to be written by code that knows nothing of boards."""
    mine = board()
    return None if mine is None else os.path.join(mine.lease.dir, f"{_STATUS}{mine.pid}")


def read_exit_code(directory: str, pid: int) -> int | None:
    """How a process has ended by its own word; None if it left none."""
    try:
        with open(os.path.join(directory, f"{_STATUS}{pid}"), "rb") as file:
            (code,) = _EXIT.unpack(file.read(_EXIT.size + 1))
        return int(code) & 0xFF
    except (OSError, struct.error):
        codes = [board.exit_code for board in read_boards(directory) if board.pid == pid]
        return codes[-1] if codes else None


def start() -> None:
    """The runtime has started: measure from here to the end of the process. Once per process."""
    global _sampled_pid
    mine = board()
    if mine is None or _sampled_pid == mine.pid:
        return
    _sampled_pid = mine.pid
    mine.note(runtime_started_ns=time.monotonic_ns(), limit=pool.limit(mine.lease))
    atexit.register(_last_reading, mine)
    # A forked child of multiprocessing leaves through os._exit after its own finalizers.
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, _last_reading, args=(mine,), exitpriority=0)
    threading.Thread(target=_sample, args=(mine,), name="sublet-measure", daemon=True).start()


def read_boards(directory: str) -> list[Reading]:
    """All boards there, by pid; what is no board, or not wholly written, is passed over."""
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


def _sample(mine: Board) -> None:
    pauses = list(_FIRST_PAUSES)
    never = threading.Event()
    try:
        while not never.wait(pauses.pop(0) if pauses else _PAUSE):
            _look(mine)
    except Exception:
        return  # The interpreter is being taken apart, and this thread says nothing of it.


def _look(mine: Board) -> None:
    """Whatever fails here, the program goes on, and finds no word of it among its own."""
    try:
        mine.note_usage()
        mine.follow_ceiling()
        _answer_late(mine.lease)
        _prune_dumps(mine.lease)
    except Exception:
        return


def _last_reading(mine: Board) -> None:
    if mine.pid == os.getpid():
        mine.note_usage()
        _answer_late(mine.lease)


def _answer_late(lease: Lease) -> None:
    """The classic mistake: CUDA has read its variables, and a program sets one of them."""
    line = environment.too_late(lease, os.environ)
    if line is not None:
        leases.say(line)


def _prune_dumps(lease: Lease) -> None:
    """A program that lives at its ceiling may leave a dump with every wait: keep the newest."""
    try:
        dumps = [entry.path for entry in os.scandir(lease.dir) if entry.name.startswith("dump_")]
        if len(dumps) > _KEPT_DUMPS:
            for path in sorted(dumps, key=os.path.getmtime)[:-_KEPT_DUMPS]:
                os.unlink(path)
    except OSError:
        pass


def _pack(reading: Reading) -> bytes:
    return _LAYOUT.pack(
        VERSION,
        reading.main_started_ns,
        reading.runtime_started_ns,
        reading.current,
        reading.peak,
        reading.limit,
        reading.updated_ns,
        reading.failures,
        reading.asked,
        0 if reading.exit_code is None else reading.exit_code + 1,
    )


def _unpack(pid: int, data: bytes) -> Reading | None:
    if len(data) != _LAYOUT.size:
        return None
    version, *fields, exit_plus_one = _LAYOUT.unpack(data)
    if version != VERSION or min(fields) < 0:
        return None
    main, runtime, current, peak, limit, updated, failures, asked = fields
    exit_code = exit_plus_one - 1 if exit_plus_one else None
    return Reading(pid, main, runtime, current, peak, limit, updated, failures, asked, exit_code)
