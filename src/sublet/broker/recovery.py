"""A damaged ledger, set aside, and a new one with all that could be read.

Nothing is thrown away: the damaged files are kept under another name. What runs at this moment is
known from the attempts' own directories, so that no lease is forgotten.
"""

import contextlib
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sublet.broker.ledger import Counter, Ledger, missing_commits
from sublet.broker.measurements import ALL_COLUMNS, FORECAST_COLUMNS
from sublet.domain.job import Finished, Job, Outcome, Surroundings
from sublet.errors import LedgerDamaged
from sublet.home import Home

_AROUND = "digest, record"


class Recovered(Struct, frozen=True):
    """What `recover` has found and where it put the damaged ledger."""

    aside: Path
    jobs: int
    peaks: int
    running: int
    missing: int = 0
    """Commits that were on disk once, and are nowhere to be read."""


def recover(home: Home) -> Recovered | None:
    """Mend the ledger; None if it is sound. No broker may run meanwhile."""
    try:
        Ledger.open(home.ledger).close()
    except LedgerDamaged:
        pass
    else:
        return None
    with tempfile.TemporaryDirectory(dir=home.path) as directory:
        copy = _readable_copy(home.ledger, Path(directory))
        jobs = {job.id: job for job in _jobs(copy)}
        found = (list(_rows(copy, "peaks", columns)) for columns in ALL_COLUMNS)
        peaks = next((rows for rows in found if rows), [])
        running = {job.id: job for job in _running(home)}
        missing, number = _commits(copy, home.ledger)
        mended = Path(directory) / "mended.sqlite"
        ledger = Ledger.open(mended)
        for job in (jobs | running).values():
            ledger.save(job)
        ledger.measurements.restore_peaks(peaks)
        ledger.measurements.restore_forecasts(list(_rows(copy, "forecasts", FORECAST_COLUMNS)))
        ledger.note("commits", str(number))
        ledger.commit()
        ledger.close()
        aside = _keep(home.ledger)
        # The old journal must not be found beside the new file. Killed between the two, the
        # damaged ledger is still in place, and its journal is kept beside the copy.
        for ending in ("-wal", "-shm"):
            Path(f"{home.ledger}{ending}").unlink(missing_ok=True)
        os.replace(mended, home.ledger)
        # Last: killed before this, the new ledger has as many commits as the counter says.
        Counter.start(home.ledger, number + 1)
    return Recovered(aside, len(jobs), len(peaks), len(running), missing)


def _commits(copy: Path, path: Path) -> tuple[int, int]:
    """How many commits are missing, and the number of the last one there was."""
    try:
        number = Counter.read(path)
    except sqlite3.Error:
        number = 0
    missing = 0
    with (
        contextlib.suppress(sqlite3.Error, ValueError),
        contextlib.closing(sqlite3.connect(copy)) as connection,
    ):
        missing = missing_commits(connection, path)
    return missing, number


def _keep(path: Path) -> Path:
    """Copy the file and its journal under a name that is free."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    aside = path.with_name(f"{path.stem}.damaged-{stamp}{path.suffix}")
    for number in range(1, 1000):
        if not aside.exists():
            break
        aside = path.with_name(f"{path.stem}.damaged-{stamp}-{number}{path.suffix}")
    for ending in ("-wal", ""):
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(f"{path}{ending}", f"{aside}{ending}")
    return aside


def _readable_copy(path: Path, directory: Path) -> Path:
    """Reading changes a database that has a journal, so a copy is read."""
    copy = directory / "damaged.sqlite"
    for ending in ("", "-wal"):
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(f"{path}{ending}", f"{copy}{ending}")
    if not copy.exists() or copy.stat().st_size < 4096:
        # SQLite throws the journal of an empty file away, and all may be in there.
        with copy.open("ab") as file:
            file.truncate(4096)
    return copy


def _jobs(path: Path) -> Iterator[Job]:
    """All jobs that can be read well enough. One without its surroundings counts as ended."""
    around = {row[0]: row[1] for row in _rows(path, "surroundings", _AROUND)}
    rows = list(_rows(path, "jobs", "record, surroundings"))
    for record, digest in rows or _rows(path, "jobs", "record, NULL"):
        # Damage gives columns values of any type.
        with contextlib.suppress(msgspec.MsgspecError, TypeError):
            job = msgspec.json.decode(record, type=Job)
            if digest is None:
                yield job
                continue
            try:
                found = msgspec.json.decode(around[digest], type=Surroundings)
            except (KeyError, msgspec.MsgspecError, TypeError):
                yield job if isinstance(job.state, Finished) else _lost(job)
            else:
                yield replace(job, spec=replace(job.spec, surroundings=found))


def _lost(job: Job) -> Job:
    outcome = Outcome("lost", 255, message="its environment was lost with the damaged ledger")
    return job.evolve(Finished(time.time(), outcome, job.lease))


def _rows(path: Path, table: str, columns: str) -> Iterator[tuple[bytes, ...]]:
    """As many rows as can be read, from both ends: a damaged page hides those behind it."""
    seen: set[int] = set()
    for start, beyond, order in ((-1, ">", "ASC"), (1 << 62, "<", "DESC")):
        # One by one: a cursor reads ahead, and would lose the last row before the damage.
        query = (
            f"SELECT rowid, {columns} FROM {table} "
            f"WHERE rowid {beyond} ? ORDER BY rowid {order} LIMIT 1"
        )
        with (
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(sqlite3.connect(path)) as connection,
        ):
            while (found := connection.execute(query, (start,)).fetchone()) is not None:
                start, *row = found
                if start in seen:
                    break
                seen.add(start)
                yield tuple(row)


def _running(home: Home) -> Iterator[Job]:
    """The attempts that have a directory: their keepers live, or have left a record."""
    for directory in sorted(home.runs.glob("*.*"), key=_attempt):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            job = msgspec.json.decode((directory / "job.json").read_bytes(), type=Job)
            if not isinstance(job.state, Finished) and (directory / "claim").exists():
                yield job


def _attempt(directory: Path) -> tuple[int, int]:
    """Job and attempt as numbers: of several, the last one counts."""
    job, _, attempt = directory.name.partition(".")
    return (int(job), int(attempt)) if (job + attempt).isdigit() else (0, 0)
