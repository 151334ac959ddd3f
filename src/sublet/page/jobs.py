"""What the page shows of one job, and what it has done to it."""

from collections.abc import Sequence

from msgspec import Struct

from sublet.client import jobs
from sublet.client.connection import ask
from sublet.client.jobs import listing
from sublet.client.logs import Stream, files
from sublet.domain.job import EventLog, Past
from sublet.home import Home
from sublet.page.job_rows import shown_job, shown_name, shown_text
from sublet.policy.explanation import lines
from sublet.policy.retry import ending
from sublet.text import plain
from sublet.wire.messages import AskExplain, Explained, Verb
from sublet.wire.rows import JobRow


class Attempt(Struct, frozen=True):
    """An attempt, and what it has left."""

    number: int
    ended: float | None = None
    how: str = ""
    peak: int | None = None
    lease: int | None = None
    ran: float | None = None
    streams: tuple[Stream, ...] = ()
    """Which output there is of it."""


class JobPage(Struct, frozen=True):
    """All that is known of one job."""

    job: JobRow
    explanation: tuple[str, ...]
    """What the size of its lease rests on."""
    attempts: tuple[Attempt, ...]
    """The latest first."""
    tasks: tuple[JobRow, ...] = ()
    """All jobs of its cluster."""


def read_event_logs(number: int, attempt: int) -> Sequence[EventLog]:
    """Where an attempt of a job has written TensorBoard's event files."""
    explained = ask(AskExplain(number), Explained)
    if attempt == explained.explanation.attempt:
        return explained.event_logs
    past = (one for one in explained.explanation.past if one.attempt == attempt)
    return next((one.outcome.event_logs for one in past), ())


def read_job(home: Home, number: int) -> JobPage:
    """The page of this job; raises BadRequest if there is none."""
    row = listing((number,)).rows[0]
    explanation = ask(AskExplain(number), Explained).explanation
    now = Attempt(
        row.attempt,
        row.since if row.state == "finished" else None,
        shown_text(row.reason) if row.state == "finished" else row.state,
        row.peak,
        row.ceiling,
        row.ran,
        _streams(home, number, row.attempt),
    )
    earlier = [_earlier(home, number, past) for past in reversed(explanation.past)]
    tasks = listing(row.gang).rows if row.gang else ()
    return JobPage(
        shown_job(row),
        tuple(plain(line) for line in lines(explanation)),
        (now, *earlier),
        tuple(map(shown_job, tasks)),
    )


def act(number: int, verb: Verb) -> str:
    """Do this to a job, and to all tasks of its cluster; what was done, in words."""
    return shown_text("; ".join(jobs.act(verb, [number])))


def _earlier(home: Home, number: int, past: Past) -> Attempt:
    outcome = past.outcome
    return Attempt(
        past.attempt,
        past.at,
        shown_name(ending(outcome)),
        outcome.peak,
        past.lease.ceiling if past.lease is not None else None,
        outcome.ran,
        _streams(home, number, past.attempt),
    )


def _streams(home: Home, number: int, attempt: int) -> tuple[Stream, ...]:
    return tuple(files(home.logs, f"{number}.{attempt}"))
