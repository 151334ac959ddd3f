"""A job whose end nobody saw, or that could not begin."""

from collections.abc import Iterator

from sublet.doctor.rule import Rule, Seen
from sublet.wire.rows import JobRow


def _job(row: JobRow) -> Iterator[Seen]:
    if row.cause in ("lost", "dependency", "time limit"):
        yield Seen(words=(f"#{row.id} {row.name}", row.reason, str(row.id)))


RULE = Rule(
    id="job-lost",
    severity="error",
    sentence="{The job} ended without finishing: {why}.",
    fix="`sublet ps {2}` shows all about it, `sublet retry {2}` runs it again.",
    job=_job,
)
