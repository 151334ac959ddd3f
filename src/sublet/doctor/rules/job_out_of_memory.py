"""The broker's verdict on a job that needed more memory than there was for it."""

from collections.abc import Iterator

from sublet.doctor.rule import Rule, Seen
from sublet.wire.rows import JobRow


def _job(row: JobRow) -> Iterator[Seen]:
    if row.cause in ("lease exceeded", "device full"):
        yield Seen(words=(f"#{row.id} {row.name}", row.reason, str(row.id)), text=row.basis)


RULE = Rule(
    id="job-out-of-memory",
    severity="error",
    sentence="{The job} ended: {the verdict}.",
    fix="`sublet explain {2}` shows what its lease rests on.",
    job=_job,
)
