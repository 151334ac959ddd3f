"""The broker's SQLite file: jobs, their endings, and what `measurements` keeps there. Its only
store.

What `save` was called with is on disk when `commit` returns. A damaged file is never reset:
opening it raises, and `sublet recover` sets it aside.

Every commit has a number, in the file and, once it is on disk, in a small file beside it. So a file
that has lost commits, with its journal for example, is known for a damaged one. A broker that takes
over counts the epoch up, and every commit looks whether it is still of the current one.
"""

import contextlib
import os
import sqlite3
import urllib.parse
from pathlib import Path

import msgspec

from sublet.broker import measurements, surroundings_store
from sublet.broker.measurements import Measurements
from sublet.broker.surroundings_store import SurroundingsStore
from sublet.domain.job import Finished, Job
from sublet.errors import LedgerDamaged, Superseded, WorldError

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
    surroundings_store.SCHEMA,
    # 4: environments go with the last job that needs them, see `_migrate`.
    "",
    # 5: what processes hold of GPUs beside their pools.
    measurements.OF_GPUS,
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
        self._identity = _identity(path)
        self._epoch: str | None = None
        self._counter = Counter(path)
        self._in_journal = True
        """Whether there are commits that are in the journal only."""
        self.measurements = Measurements(connection, self._begin)
        self.common = SurroundingsStore(connection, self._begin)
        self._unscrubbed = False

    @classmethod
    def open(cls, path: Path) -> "Ledger":
        """Open or create, check, and bring an older schema up to date."""
        connection: sqlite3.Connection | None = None
        try:
            if path.exists():
                _check(path)
            elif Counter.read(path):
                raise sqlite3.DatabaseError("the file is gone")
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

    def claim(self) -> None:
        """Become the only writer: commits of an earlier broker are refused from here on."""
        self._epoch = None
        try:
            epoch = str(int(self.fact("epoch") or 0) + 1)
            self.note("epoch", epoch)
            self.commit()
        except sqlite3.Error as error:
            raise _explain(error, self.path) from error
        self._epoch = epoch

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
        """The numbers of all jobs, live and finished."""
        return {number for (number,) in self._db.execute("SELECT id FROM jobs")}

    def fact(self, name: str) -> str | None:
        """A value that was noted under this name; None if none was."""
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def note(self, name: str, value: str) -> None:
        """Note a value under a name; durable with the next `commit`."""
        self._begin()
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def _jobs(self, where: str, *values: object) -> list[Job]:
        """Opening has read all live ones. A finished one whose record is damaged counts as
        forgotten: it must not cost the others their broker."""
        found = []
        query = f"SELECT live, record, surroundings FROM jobs WHERE {where}"
        for live, *row in self._db.execute(query, values):
            try:
                found.append(self.common.put_together(*row))
            except (msgspec.MsgspecError, LookupError, TypeError):
                if live:
                    raise
        return found

    def commit(self) -> None:
        """Everything saved so far is on disk when this returns. Raises Superseded, and changes
        nothing, if another broker has taken over."""
        if not self._db.in_transaction:
            return
        if self._epoch is not None and (
            self.fact("epoch") != self._epoch or _identity(self.path) != self._identity
        ):
            self.rollback()
            raise Superseded(f"Another broker has taken {self.path.parent} over, or it is gone.")
        number = self._count()
        self._db.execute("COMMIT")
        self._in_journal = True
        self._counter.write(number)

    def _count(self) -> int:
        known = self.fact("commits")
        number = int(known or 0) + 1
        if known is None:
            self.note("commits", str(number))
        else:
            # Not replaced: that would write one page more.
            self._db.execute("UPDATE facts SET value = ? WHERE name = 'commits'", (str(number),))
        return number

    @property
    def in_journal(self) -> bool:
        """Whether there are commits that are in the journal only."""
        return self._in_journal and not self._db.in_transaction

    def checkpoint(self) -> None:
        """Bring all commits from the journal into the file itself, where nothing but damage to the
        file can touch them. The journal is emptied if dropped environments may lie in it."""
        self._db.execute(f"PRAGMA wal_checkpoint({'TRUNCATE' if self._unscrubbed else 'PASSIVE'})")
        self._in_journal = self._unscrubbed = False

    def rollback(self) -> None:
        """Forget what was saved since the last commit."""
        # A full disk may have ended the transaction already.
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self.common.rolled_back()

    def close(self) -> None:
        """Close the file; what was not committed is lost."""
        self._db.close()
        self._counter.close()

    def _begin(self) -> None:
        if not self._db.in_transaction:
            self._db.execute("BEGIN IMMEDIATE")


class Counter:
    """The number of the last commit that is known to be on disk, in a file beside the ledger.

    It is written after the commit, so it is never ahead of a ledger that is whole. It is not
    synchronized: after a loss of power it may say less than there is, which does no harm.
    """

    def __init__(self, ledger: Path) -> None:
        self._number: int | None = None
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            self._number = os.open(self.path(ledger), flags, 0o600)

    @staticmethod
    def path(ledger: Path) -> Path:
        """The counter's own file, beside the ledger."""
        return ledger.with_suffix(".commits")

    @classmethod
    def read(cls, ledger: Path) -> int:
        """The number that was written last; 0 if none was."""
        try:
            return int(cls.path(ledger).read_bytes().decode("ascii", "replace") or 0)
        except FileNotFoundError:
            return 0
        except ValueError:
            raise sqlite3.DatabaseError("the number of its last commit cannot be read") from None

    @classmethod
    def start(cls, ledger: Path, number: int) -> None:
        """Write this number as that of the last commit."""
        cls.path(ledger).write_bytes(b"%020d\n" % number)

    def write(self, number: int) -> None:
        """This commit is on disk. A disk that has no room for its number keeps an older one."""
        if self._number is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._number, b"%020d\n" % number, 0)

    def close(self) -> None:
        """Close the file; no commit is counted any more."""
        if self._number is not None:
            os.close(self._number)
            self._number = None


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells this file from a later one of the same name; None if it is gone."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=5.0)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    # Or it would need other files, in other directories.
    connection.execute("PRAGMA temp_store = MEMORY")
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
        missing = missing_commits(connection, path)
        if missing:
            raise sqlite3.DatabaseError(
                f"its last {missing} commits are missing, with its journal ({path.name}-wal)"
            )
        apart = "surroundings" if version >= 3 else "NULL"
        shared = SurroundingsStore(connection, lambda: None)
        for row in connection.execute(f"SELECT record, {apart} FROM jobs WHERE live"):
            shared.put_together(*row)


def missing_commits(connection: sqlite3.Connection, path: Path) -> int:
    """How many commits of the ledger at `path` were on disk and are not in what can be read."""
    (known,) = connection.execute(
        "SELECT count(*) FROM sqlite_schema WHERE name = 'facts'"
    ).fetchone()
    row = known and connection.execute("SELECT value FROM facts WHERE name = 'commits'").fetchone()
    return max(0, Counter.read(path) - (int(row[0]) if row else 0))


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
            SurroundingsStore(connection, lambda: None).forget_finished()
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
