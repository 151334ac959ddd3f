"""A job that waits says what for."""

from collections.abc import Iterator

from sublet.doctor.rule import Rule, Seen
from sublet.wire.rows import JobRow


def _job(row: JobRow) -> Iterator[Seen]:
    if row.state == "waiting" and row.reason:
        yield Seen(words=(f"#{row.id} {row.name}", row.reason))


RULE = Rule(
    id="job-waits",
    severity="note",
    sentence="{The job} waits: {what for}.",
    fix="`sublet status` shows who holds what.",
    job=_job,
)
