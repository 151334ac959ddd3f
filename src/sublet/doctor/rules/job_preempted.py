"""TensorFlow's preemption handler ends a program with 42 when it has saved its state."""

from collections.abc import Iterator

from sublet.doctor.rule import Rule, Seen
from sublet.wire.rows import JobRow

_SAVED = 42


def _job(row: JobRow) -> Iterator[Seen]:
    if row.cause == "exited" and row.code == _SAVED:
        yield Seen(words=(f"#{row.id} {row.name}", str(row.id)))


RULE = Rule(
    id="job-preempted",
    severity="note",
    sentence="{The job} saved its state and ended with exit code 42, as after a preemption.",
    fix="`sublet retry {1}` goes on from there.",
    job=_job,
)
