"""What programs were measured to use: the only home of these rows of the ledger.

Owns what counts as the same program, the same arguments and the same text. Reads and writes
through the ledger's connection, so that a measurement is on disk with the job it belongs to. Never
decides: what the rows teach is `policy.learning`'s.
"""

import hashlib
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from sublet.domain.history import Forecast, History, Likeness, Run
from sublet.domain.job import Job, JobSpec, Outcome
from sublet.policy.batch_argument import read_batch
from sublet.policy.learning import Lesson, learn
from sublet.policy.sizing import Evidence

SCHEMA = """
    ALTER TABLE peaks ADD COLUMN job INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE peaks ADD COLUMN shape TEXT NOT NULL DEFAULT '';
    ALTER TABLE peaks ADD COLUMN batch INTEGER;
    ALTER TABLE peaks ADD COLUMN text TEXT NOT NULL DEFAULT '';
    UPDATE peaks SET shape = arguments;
    CREATE INDEX peaks_of_a_shape ON peaks (program, kind, shape, id);
    CREATE TABLE forecasts (
        id INTEGER PRIMARY KEY,
        program TEXT NOT NULL,
        arguments TEXT NOT NULL,
        kind TEXT NOT NULL,
        text TEXT NOT NULL,
        record BLOB NOT NULL,
        UNIQUE (program, arguments, kind)
    );
"""
"""What schema 2 adds: the batch size apart from the other arguments, a digest of the script, and
what probes have forecast."""
OF_GPUS = """
    ALTER TABLE peaks ADD COLUMN device TEXT NOT NULL DEFAULT '';
    ALTER TABLE peaks ADD COLUMN outside INTEGER;
    CREATE INDEX peaks_on_a_device ON peaks (device, id) WHERE device <> '';
"""
"""What schema 5 adds: the model of the GPU, and what a process held of it beside its pool."""
SCHEMA_1_COLUMNS = (
    "program, arguments, kind, start, ended, ceiling, peak, system_peak, exceeded, good"
)
SCHEMA_2_COLUMNS = f"{SCHEMA_1_COLUMNS}, job, shape, batch, text"
SCHEMA_3_COLUMNS = f"{SCHEMA_2_COLUMNS}, ran"
COLUMNS = f"{SCHEMA_3_COLUMNS}, device, outside"
ALL_COLUMNS = (COLUMNS, SCHEMA_3_COLUMNS, SCHEMA_2_COLUMNS, SCHEMA_1_COLUMNS)
"""As a ledger of any schema may have them, the newest first."""
FORECAST_COLUMNS = "program, arguments, kind, text, record"
PROBE = b"SUBLET_PROBE"
"""Set in the environment of a probe's runs: they are cut short, so their peaks are no runs."""

_LIKE = 40
_OTHERS = 10
"""How many of the latest runs are read: of the same shape, and of any."""
_SEVERAL = 3
"""So many programs must have been measured on a GPU before another is charged by them."""
_LARGEST_TEXT = 1 << 22
_MOST_PRINTS = 20_000

Rows = Sequence[tuple[object, ...]]


class Fingerprint(NamedTuple):
    """What counts as the same program, and what tells its runs apart."""

    program: str
    arguments: str
    shape: str
    """The arguments with the place of the batch size held open."""
    batch: int | None
    text: str
    """A digest of the script as it was when the job was first seen; empty where it cannot be
    read."""


class Measurements:
    """The rows about programs. `begin` opens the ledger's transaction."""

    def __init__(self, db: sqlite3.Connection, begin: Callable[[], None]) -> None:
        self._db = db
        self._begin = begin
        self._prints: dict[int, tuple[JobSpec, Fingerprint]] = {}
        self._lessons: dict[tuple[Fingerprint, str, str, str], Lesson] = {}

    def remember(
        self,
        job: Job,
        kind: str,
        ceiling: int,
        outcome: Outcome,
        start: str,
        at: float,
        model: str = "",
    ) -> None:
        """Keep what a run was measured to use; durable with the ledger's next commit. `model` is
        the name of a GPU."""
        if PROBE in job.spec.surroundings.environ:
            return
        known = self._print(job)
        row = (known.program, known.arguments, kind, start, at, ceiling, outcome.peak,
               outcome.system_peak, outcome.cause == "lease exceeded", outcome.code == 0,
               job.id, known.shape, known.batch, known.text, outcome.ran, model,
               outcome.outside)  # fmt: skip
        self._insert("peaks", COLUMNS, [row])
        self._prints.pop(job.id, None)

    def keep_forecast(self, spec: JobSpec, kind: str, forecast: Forecast) -> None:
        """Keep what a probe has forecast, in place of an earlier forecast."""
        known = fingerprint(spec)
        record = msgspec.json.encode(forecast)
        row = (known.program, known.arguments, kind, known.text, record)
        self._insert("forecasts", FORECAST_COLUMNS, [row])

    def restore_peaks(self, rows: Rows) -> None:
        """Put back measurements that were read from a damaged ledger, as they were."""
        widths = {columns.count(",") + 1: columns for columns in ALL_COLUMNS}
        if rows:
            self._insert("peaks", widths[len(rows[0])], rows)

    def restore_forecasts(self, rows: Rows) -> None:
        """Put back what probes had forecast, from a damaged ledger."""
        self._insert("forecasts", FORECAST_COLUMNS, rows)

    def program(self, job: Job) -> str:
        """What counts as the same program as this job's."""
        return self._print(job).program

    def evidence(self, job: Job, kind: str, model: str = "") -> Evidence:
        """What is known of this program on this kind of device, in sum; what a process costs beside
        its pool is known of a GPU's model.

        Remembered until something new is measured: all that wait are asked about at every plan.
        """
        if PROBE in job.spec.surroundings.environ:
            return Evidence()
        key = (self._print(job), kind, start_of(job), model)
        if key not in self._lessons:
            self._lessons[key] = learn(self._history(*key))
        return self._lessons[key].evidence

    def history(self, job: Job, kind: str, before: float | None = None, model: str = "") -> History:
        """The runs and the probe that a job's lease rests on; only those that had ended `before`,
        for a job that was sized in the past."""
        return self._history(self._print(job), kind, start_of(job), model, before)

    def expected(self, job: Job) -> float | None:
        """Seconds that the program has run for with these arguments, before: the median."""
        known = self._print(job)
        rows = self._db.execute(
            "SELECT ran FROM peaks WHERE program = ? AND arguments = ? AND good "
            "AND ran IS NOT NULL ORDER BY id DESC LIMIT 9",
            (known.program, known.arguments),
        ).fetchall()
        spans = sorted(span for (span,) in rows)
        return spans[len(spans) // 2] if spans else None

    def usual_outside(self, kind: str, start: str) -> int | None:
        """What a process usually costs beside its pool: the upper quartile of recent runs.

        Only of those that used TensorFlow: a script that did nothing tells nothing.
        """
        rows = self._db.execute(
            "SELECT system_peak - peak FROM peaks WHERE kind = ? AND start = ? "
            "AND system_peak IS NOT NULL AND peak > 0 AND NOT exceeded ORDER BY id DESC LIMIT 20",
            (kind, start),
        ).fetchall()
        amounts = sorted(max(0, amount) for (amount,) in rows)
        return amounts[len(amounts) * 3 // 4] if amounts else None

    def usual_on_gpu(self, model: str) -> int | None:
        """The most that a process of any program held of such a GPU beside its pool, in recent
        runs; None until several programs were measured, as each loads other libraries."""
        rows = self._db.execute(
            "SELECT program, outside FROM peaks WHERE device = ? AND device <> '' "
            "AND outside IS NOT NULL ORDER BY id DESC LIMIT 20",
            (model,),
        ).fetchall()
        several = len({program for program, _ in rows}) >= _SEVERAL
        return max(outside for _, outside in rows) if several else None

    def _insert(self, table: str, columns: str, rows: Rows) -> None:
        self._begin()
        places = ", ".join("?" * (columns.count(",") + 1))
        self._db.executemany(f"INSERT OR REPLACE INTO {table} ({columns}) VALUES ({places})", rows)
        self._lessons.clear()

    def _print(self, job: Job) -> Fingerprint:
        """Taken once for each job: its script may be edited while it waits or runs. Without a
        number above 0 it is no job yet."""
        if job.id < 1:
            return fingerprint(job.spec)
        spec, known = self._prints.get(job.id, (None, None))
        if known is None or spec is not job.spec:
            if len(self._prints) >= _MOST_PRINTS:
                self._prints.clear()
            known = known if spec == job.spec and known else fingerprint(job.spec)
            self._prints[job.id] = (job.spec, known)
        return known

    def _history(
        self,
        known: Fingerprint,
        kind: str,
        start: str,
        model: str = "",
        before: float | None = None,
    ) -> History:
        columns = "SELECT id, job, ended, ceiling, peak, system_peak, exceeded, good, batch, text"
        columns += (
            ", arguments, shape, start, device, outside, kind FROM peaks "
            "WHERE program = ? AND kind = ? AND ended < ?"
        )
        last = 1e300 if before is None else before
        rows = self._db.execute(
            f"{columns} AND (shape = ? OR arguments = ?) ORDER BY id DESC LIMIT ?",
            (known.program, kind, last, known.shape, known.arguments, _LIKE),
        ).fetchall()
        rows += self._db.execute(
            f"{columns} AND shape <> ? AND arguments <> ? ORDER BY id DESC LIMIT ?",
            (known.program, kind, last, known.shape, known.arguments, _OTHERS),
        ).fetchall()
        runs = tuple(_run(row[1:], known) for row in sorted(rows, key=lambda row: -row[0]))
        return History(runs, known.batch, self._forecast(known, kind, last), start, model)

    def _forecast(self, known: Fingerprint, kind: str, before: float) -> Forecast | None:
        row = self._db.execute(
            "SELECT text, record FROM forecasts WHERE program = ? AND arguments = ? AND kind = ?",
            (known.program, known.arguments, kind),
        ).fetchone()
        if row is None:
            return None
        outcome = msgspec.json.decode(row[1], type=Forecast)
        if outcome.at >= before:
            return None
        return msgspec.structs.replace(outcome, edited=_edited(row[0], known.text))


def start_of(job: Job) -> str:
    """How a job is going to be started, as far as is known before."""
    if job.spec.in_process is not None:
        return "lodger"
    return "cold" if job.spec.cold or not job.spec.program.python else "warm"


def fingerprint(spec: JobSpec) -> Fingerprint:
    """What tells this program's runs from others; reads the script once for its digest."""
    program = spec.program
    target = program.target
    if not target.startswith(b"/"):
        target = spec.surroundings.cwd + b"/" + target
    name = spec.identity
    if spec.gpus is not None and spec.gpus > 1:
        name += f" on {spec.gpus} GPUs"  # Each has its part of what one would have.
    if spec.gang is not None:
        name += f" as {spec.gang.role}"  # A parameter server needs what a worker does not.
    args = tuple(word.decode(errors="replace") for word in program.args)
    batch, shape = read_batch(args)
    text = _digest(target) if program.kind == "script" else ""
    return Fingerprint(name, "\0".join(args), "\0".join(shape), batch, text)


def _digest(path: bytes) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.blake2b(file.read(_LARGEST_TEXT), digest_size=16).hexdigest()
    except OSError:
        return ""


def _edited(then: str, now: str) -> bool:
    return bool(then and now and then != now)


def _run(row: tuple[Any, ...], known: Fingerprint) -> Run:
    job, at, ceiling, peak, system, exceeded, good, batch, text, arguments, shape, start, *gpu = row
    model, outside, kind = gpu
    if kind == "cpu" and system is not None:
        outside = max(0, system - (peak or 0))
    return Run(
        job=job,
        at=at,
        ceiling=ceiling,
        peak=peak,
        outside=outside,
        exceeded=bool(exceeded),
        good=bool(good),
        batch=batch,
        likeness=_likeness(arguments, shape, known),
        edited=_edited(text, known.text),
        start=start,
        model=model,
    )


def _likeness(arguments: str, shape: str, known: Fingerprint) -> Likeness:
    if arguments == known.arguments:
        return "same"
    return "batch" if known.batch and shape == known.shape else "other"
