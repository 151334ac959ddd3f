"""Clients send plain fields, the broker reads records: both know the same fields."""

import msgspec
import pytest

from sublet.client import job_request
from sublet.domain import job, job_fields

OF_THE_BROKER = {"task", "within", "gang", "wished"}
"""Fields that clients do not send."""


@pytest.mark.parametrize(
    ("fields", "record"),
    [
        (job_fields.ProcessFields, job.Process),
        (job_fields.ProgramFields, job.Program),
        (job_fields.SurroundingsFields, job.Surroundings),
        (job_fields.JobFields, job.JobSpec),
    ],
)
def test_plain_fields_are_those_of_the_record(fields: type, record: type[msgspec.Struct]) -> None:
    known = {one.name: one.required for one in msgspec.structs.fields(record)}
    for name in OF_THE_BROKER:
        known.pop(name, None)
    required: frozenset[str] = fields.__required_keys__  # type: ignore[attr-defined]
    optional: frozenset[str] = fields.__optional_keys__  # type: ignore[attr-defined]
    assert {name for name, needed in known.items() if needed} == required
    assert {name for name, needed in known.items() if not needed} == optional


def test_a_command_line_becomes_a_record() -> None:
    fields = job_request.job_without_client([__file__, "--lr", "0.1"], "2GiB", retries=3)
    spec = msgspec.convert(fields, job.JobSpec, strict=False)
    assert (spec.name, spec.retries, spec.client) == ("test_job_fields.py", 3, None)
    assert spec.program.args == (b"--lr", b"0.1")
