"""The broker's SQLite file: jobs, their endings, and what `measurements` keeps there. Its only
store.

What `save` was called with is on disk when `commit` returns. A damaged file is never reset:
opening it raises, and `sublet recover` sets it aside.
"""

import contextlib
import os
import sqlite3
import urllib.parse
from pathlib import Path

import msgspec

from sublet.broker import common, measurements
from sublet.broker.common import Common
from sublet.broker.measurements import Measurements
from sublet.domain.job import Finished, Job
from sublet.errors import LedgerDamaged, WorldError

_MIGRATIONS = (
    # 1: jobs as records, live or finished; what programs were measured to use.
    """
    CREATE TABLE jobs (
        id INTEGER PRIMARY KEY,
        live INTEGER NOT NULL,
        state TEXT NOT NULL,
        record BLOB NOT NULL
    );
    CREATE INDEX live_jobs ON jobs (id) WHERE live;
    CREATE TABLE peaks (
        id INTEGER PRIMARY KEY,
        program TEXT NOT NULL,
        arguments TEXT NOT NULL,
        kind TEXT NOT NULL,
        start TEXT NOT NULL,
        ended REAL NOT NULL,
        ceiling INTEGER NOT NULL,
        peak INTEGER,
        system_peak INTEGER,
        exceeded INTEGER NOT NULL,
        good INTEGER NOT NULL
    );
    CREATE INDEX peaks_of_a_program ON peaks (program, kind, arguments, id);
    """,
    # 2: what sets runs of a program apart, and what probes have forecast.
    measurements.SCHEMA,
    # 3: jobs that last: found by token, with their surroundings apart; the last boot.
    common.SCHEMA,
    # 4: environments go with the last job that needs them, see `_migrate`.
    "",
)
VERSION = len(_MIGRATIONS)
_FORGETFUL = 4
"""The schema from which on environments are dropped."""
_SMALLEST_FILE = 100
"""SQLite's header alone is that long."""


class Ledger:
    """One connection, used by one thread."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._db = connection
        self.path = path
        self.measurements = Measurements(connection, self._begin)
        self.common = Common(connection, self._begin)
        self._unscrubbed = False

    @classmethod
    def open(cls, path: Path) -> "Ledger":
        """Open or create, check, and bring an older schema up to date."""
        connection: sqlite3.Connection | None = None
        try:
            if path.exists():
                _check(path)
            else:
                _create(path)
            connection = _connect(path)
            _migrate(connection)
            # A broker that was killed may have left environments in it that it had dropped.
            with contextlib.suppress(sqlite3.OperationalError):  # The disk is full.
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except (sqlite3.Error, msgspec.MsgspecError, LookupError, TypeError, OSError) as error:
            if connection is not None:
                connection.close()
            raise _explain(error, path) from error
        return cls(connection, path)

    def live(self) -> list[Job]:
        """The jobs that have not finished, in the order they came."""
        return self._jobs("live ORDER BY id")

    def last_id(self) -> int:
        """The highest job number ever given."""
        (number,) = self._db.execute("SELECT coalesce(max(id), 0) FROM jobs").fetchone()
        return int(number)

    def find(self, job: int) -> Job | None:
        """A job, live or finished."""
        return next(iter(self._jobs("id = ?", job)), None)

    def with_token(self, token: str) -> Job | None:
        """The first job that was asked for with this token."""
        return next(iter(self._jobs("token = ? ORDER BY id LIMIT 1", token)), None)

    def latest(self, count: int) -> list[Job]:
        """The finished jobs that came last, in the order they came."""
        return self._jobs("NOT live ORDER BY id DESC LIMIT ?", count)[::-1]

    def save(self, job: Job) -> None:
        """Write the job as it is now; durable with the next `commit`."""
        self._begin()
        finished = isinstance(job.state, Finished)
        state = type(job.state).__name__.lower()
        record, around = self.common.put_apart(job)
        self._db.execute(
            "INSERT INTO jobs (id, live, state, record, token, surroundings) "
            "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET live = excluded.live, "
            "state = excluded.state, record = excluded.record, "
            "surroundings = excluded.surroundings",
            (job.id, not finished, state, record, job.token, around),
        )
        if finished and self.common.forget(job):
            self._unscrubbed = True

    def prune(self, keep: int) -> list[int]:
        """Forget finished jobs: all but the latest `keep` of the queue, and all but as many of
        those that somebody waited for, so that a pool's many calls do not push the queue's out.
        The numbers of those forgotten."""
        self._begin()
        (ended,) = self._db.execute("SELECT count(*) FROM jobs WHERE NOT live").fetchone()
        if ended <= keep:
            return []
        rows = self._db.execute(
            "SELECT id FROM (SELECT id, row_number() OVER ("
            "PARTITION BY json_extract(CAST(record AS TEXT), '$.spec.client') IS NULL "
            "ORDER BY id DESC) AS place FROM jobs WHERE NOT live) WHERE place > ? ORDER BY id DESC",
            (keep,),
        ).fetchall()
        if rows:
            self._db.executemany("DELETE FROM jobs WHERE id = ?", rows)
            self.common.prune()
        return [number for (number,) in rows]

    def numbers(self) -> set[int]:
        """Of all jobs there are, live and finished."""
        return {number for (number,) in self._db.execute("SELECT id FROM jobs")}

    def fact(self, name: str) -> str | None:
        """Something that was noted."""
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def note(self, name: str, value: str) -> None:
        """Note something; durable with the next `commit`."""
        self._begin()
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def _jobs(self, where: str, *values: object) -> list[Job]:
        query = f"SELECT record, surroundings FROM jobs WHERE {where}"
        return [self.common.put_together(*row) for row in self._db.execute(query, values)]

    def commit(self) -> None:
        """Everything saved so far is on disk when this returns."""
        if self._db.in_transaction:
            self._db.execute("COMMIT")

    @property
    def unscrubbed(self) -> bool:
        """Whether the journal may still have environments that were dropped."""
        return self._unscrubbed and not self._db.in_transaction

    def scrub(self) -> None:
        """Empty the journal, in which environments lie that were dropped."""
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._unscrubbed = False

    def rollback(self) -> None:
        """Forget what was saved since the last commit."""
        # A full disk may have ended the transaction already.
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self.common.rolled_back()

    def close(self) -> None:
        """Close the file; what was not committed is lost."""
        self._db.close()

    def _begin(self) -> None:
        if not self._db.in_transaction:
            self._db.execute("BEGIN IMMEDIATE")


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=5.0)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    # What is deleted is overwritten, too.
    connection.execute("PRAGMA secure_delete = ON")
    return connection


def _check(path: Path) -> None:
    """Look at the file without touching it: a damaged one must stay as it is, its journal too."""
    if path.stat().st_size < _SMALLEST_FILE:
        raise sqlite3.DatabaseError("the file is cut short")
    name = urllib.parse.quote(str(path))
    with contextlib.closing(sqlite3.connect(f"file:{name}?mode=ro", uri=True)) as connection:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
        if version > VERSION:
            raise WorldError(
                f"The ledger {path} was written by a newer Sublet (schema {version}, "
                f"this one knows {VERSION}).",
                "Upgrade Sublet, or set SUBLET_HOME to another directory.",
            )
        if not version or not {"jobs", "peaks"} <= tables:
            raise sqlite3.DatabaseError("its tables are missing")
        apart = "surroundings" if version >= 3 else "NULL"
        shared = Common(connection, lambda: None)
        for row in connection.execute(f"SELECT record, {apart} FROM jobs WHERE live"):
            shared.put_together(*row)


def _create(path: Path) -> None:
    """A new ledger appears under its name whole, or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    os.close(os.open(partial, os.O_RDWR | os.O_CREAT, 0o600))
    with contextlib.closing(sqlite3.connect(partial, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        _migrate(connection)
    os.replace(partial, path)


def _migrate(connection: sqlite3.Connection) -> None:
    (before,) = connection.execute("PRAGMA user_version").fetchone()
    for number, script in enumerate(_MIGRATIONS[before:], start=before + 1):
        connection.executescript(f"BEGIN IMMEDIATE; {script}")
        if number == _FORGETFUL:
            Common(connection, lambda: None).forget_finished()
        connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("COMMIT")
    if 0 < before < _FORGETFUL:
        # What was deleted earlier still lies in pages that are free.
        connection.execute("VACUUM")


def _explain(error: Exception, path: Path) -> WorldError:
    if isinstance(error, sqlite3.OperationalError | OSError):
        return WorldError(
            f"The ledger {path} cannot be used: {error}.",
            "Free some space, make the directory writable, or set SUBLET_HOME to another one.",
        )
    return LedgerDamaged(
        f"The ledger {path} is damaged: {error}.",
        "Nothing was changed. `sublet recover` sets the file aside and saves what can be read.",
    )
