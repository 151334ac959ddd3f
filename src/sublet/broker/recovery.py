"""A damaged ledger, set aside, and a new one with all that could be read.

Nothing is thrown away: the damaged files are kept under another name. What runs at this moment is
known from the attempts' own directories, so that no lease is forgotten.
"""

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from sublet.broker.ledger import Ledger
from sublet.domain.job import Finished, Job
from sublet.errors import LedgerDamaged
from sublet.home import Home

_PEAKS = "program, arguments, kind, start, ended, ceiling, peak, system_peak, exceeded, good"


class Recovered(Struct, frozen=True):
    """What was done."""

    aside: Path
    jobs: int
    peaks: int
    running: int


def recover(home: Home) -> Recovered | None:
    """Mend the ledger; None if it is sound. No broker may run meanwhile."""
    try:
        Ledger.open(home.ledger).close()
    except LedgerDamaged:
        pass
    else:
        return None
    aside = _set_aside(home.ledger)
    ledger = Ledger.open(home.ledger)
    jobs = {job.id: job for job in _jobs(aside)}
    running = {job.id: job for job in _running(home)}
    for job in (jobs | running).values():
        ledger.save(job)
    peaks = list(_rows(aside, "peaks", _PEAKS))
    ledger.restore_peaks(peaks)
    ledger.commit()
    ledger.close()
    return Recovered(aside, len(jobs), len(peaks), len(running))


def _set_aside(path: Path) -> Path:
    """Move the file and its journal out of the way, under a name that is free."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    aside = path.with_name(f"{path.stem}.damaged-{stamp}{path.suffix}")
    for number in range(1, 1000):
        if not aside.exists():
            break
        aside = path.with_name(f"{path.stem}.damaged-{stamp}-{number}{path.suffix}")
    for ending in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            Path(f"{path}{ending}").rename(f"{aside}{ending}")
    return aside


def _jobs(path: Path) -> Iterator[Job]:
    for (record,) in _rows(path, "jobs", "record"):
        with contextlib.suppress(msgspec.MsgspecError):
            yield msgspec.json.decode(record, type=Job)


def _rows(path: Path, table: str, columns: str) -> Iterator[tuple[bytes, ...]]:
    """As many rows as can be read, from both ends: a damaged page hides those behind it."""
    seen: set[int] = set()
    for order in ("ASC", "DESC"):
        with contextlib.suppress(sqlite3.Error), sqlite3.connect(path) as connection:
            query = f"SELECT id, {columns} FROM {table} ORDER BY id {order}"
            for number, *row in connection.execute(query):
                if number not in seen:
                    seen.add(number)
                    yield tuple(row)


def _running(home: Home) -> Iterator[Job]:
    """The attempts that have a directory: their keepers live, or have left a record."""
    for directory in sorted(home.runs.glob("*.*")):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            job = msgspec.json.decode((directory / "job.json").read_bytes(), type=Job)
            if not isinstance(job.state, Finished) and (directory / "claim").exists():
                yield job
