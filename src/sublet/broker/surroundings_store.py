"""Surroundings that jobs have in common, kept once.

A thousand jobs from one shell have one environment: in memory they share one record, and in the
ledger one row, which their own rows name by its digest. When the last of them has ended, the
environment is gone from the ledger.
"""

import hashlib
import sqlite3
import weakref
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from sublet.domain.job import Finished, Job, Surroundings

SCHEMA = """
    CREATE TABLE surroundings (digest BLOB PRIMARY KEY, record BLOB NOT NULL);
    ALTER TABLE jobs ADD COLUMN token TEXT NOT NULL DEFAULT '';
    UPDATE jobs SET token = json_extract(CAST(record AS TEXT), '$.token')
        WHERE json_valid(CAST(record AS TEXT));
    ALTER TABLE jobs ADD COLUMN surroundings BLOB;
    CREATE INDEX job_tokens ON jobs (token);
    CREATE INDEX job_surroundings ON jobs (surroundings);
    CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    ALTER TABLE peaks ADD COLUMN ran REAL;
"""
"""What schema 3 adds: surroundings apart from jobs, jobs by their tokens, the last boot, and how
long programs ran."""

_NOWHERE = Surroundings(b"", {}, 0, 0, (), (), {})
"""Stands in a job's own row where its surroundings are kept apart."""


class SurroundingsStore:
    """The rows of surroundings. `begin` opens the ledger's transaction."""

    def __init__(self, db: sqlite3.Connection, begin: Callable[[], None]) -> None:
        self._db = db
        self._begin = begin
        self._shared: weakref.WeakValueDictionary[bytes, Surroundings] = (
            weakref.WeakValueDictionary()
        )
        self._written: set[bytes] = set()

    def share(self, job: Job) -> Job:
        """The same job, with a record of its surroundings that others have too."""
        digest, _ = _digest(job.spec.surroundings)
        return self._with(job, self._shared.setdefault(digest, job.spec.surroundings))

    def put_apart(self, job: Job) -> tuple[bytes, bytes]:
        """Write a job's surroundings, without the environment if it has ended; returns the record
        of the job without them, and their digest."""
        around = job.spec.surroundings
        if isinstance(job.state, Finished):
            around = around.forget()
        return msgspec.json.encode(self._with(job, _NOWHERE)), self._write(around)

    def forget(self, job: Job) -> bool:
        """This job has ended: drop its environment, unless a live one has the same. Whether it was
        dropped."""
        around = job.spec.surroundings
        if not around.environ:
            return False
        digest, _ = _digest(around)
        living = "SELECT 1 FROM jobs WHERE surroundings = ? AND live LIMIT 1"
        if self._db.execute(living, (digest,)).fetchone() is not None:
            return False
        self._replace(digest, around.forget())
        return True

    def forget_finished(self) -> None:
        """Drop the environments that only finished jobs have; earlier versions kept them."""
        rows = self._db.execute(
            "SELECT digest, record FROM surroundings WHERE digest NOT IN "
            "(SELECT surroundings FROM jobs WHERE live AND surroundings IS NOT NULL)"
        ).fetchall()
        for digest, record in rows:
            around = msgspec.json.decode(record, type=Surroundings)
            if around.environ:
                self._replace(digest, around.forget())
        self._db.execute(
            "UPDATE jobs SET record = CAST(json_set(CAST(record AS TEXT), "
            "'$.spec.surroundings.environ', json('{}')) AS BLOB) "
            "WHERE NOT live AND surroundings IS NULL AND json_valid(CAST(record AS TEXT))"
        )

    def _write(self, around: Surroundings) -> bytes:
        digest, record = _digest(around)
        if digest not in self._written:
            self._begin()
            self._db.execute("INSERT OR IGNORE INTO surroundings VALUES (?, ?)", (digest, record))
            self._written.add(digest)
        return digest

    def _replace(self, digest: bytes, around: Surroundings) -> None:
        """Give jobs that have the surroundings with this digest these instead."""
        self._db.execute(
            "UPDATE jobs SET surroundings = ? WHERE surroundings = ?", (self._write(around), digest)
        )
        self._db.execute("DELETE FROM surroundings WHERE digest = ?", (digest,))
        self._written.discard(digest)

    def put_together(self, record: bytes, digest: bytes | None) -> Job:
        """The whole job; raises what msgspec has against it, or LookupError."""
        job = msgspec.json.decode(record, type=Job)
        if digest is None:
            return self.share(job)
        found = self._shared.get(digest)
        if found is None:
            query = "SELECT record FROM surroundings WHERE digest = ?"
            row = self._db.execute(query, (digest,)).fetchone()
            if row is None:
                raise LookupError(f"the surroundings of job {job.id} are missing")
            found = msgspec.json.decode(row[0], type=Surroundings)
            self._shared[digest] = found
        return self._with(job, found)

    def rolled_back(self) -> None:
        """Forget what was written since the last commit: it was rolled back."""
        self._written.clear()

    def prune(self) -> None:
        """Drop surroundings that no job has any more."""
        self._begin()
        self._db.execute(
            "DELETE FROM surroundings WHERE digest NOT IN "
            "(SELECT surroundings FROM jobs WHERE surroundings IS NOT NULL)"
        )
        self._written.clear()

    @staticmethod
    def _with(job: Job, around: Surroundings) -> Job:
        return replace(job, spec=replace(job.spec, surroundings=around))


def _digest(around: Surroundings) -> tuple[bytes, bytes]:
    record = msgspec.json.encode(around)
    return hashlib.sha256(record).digest()[:16], record
