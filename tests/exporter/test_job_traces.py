"""Traces of jobs: wait, start and run of each attempt, below one span for the job."""

import pytest
from msgspec.structs import replace

from sublet import tracing
from sublet.client.snapshot_feed import View
from sublet.exporter.job_traces import JobTraces
from sublet.wire.rows import EventRow, JobRow
from support.otlp import attributes, receiver

ROW = JobRow(7, "train\x1b.py", "waiting", "", 100.0, 1, "7.1", "normal", "guaranteed", "1GiB")
ENDED = replace(ROW, state="finished", code=1, cause="exited", reason="exit code 1", device="cpu")


def view(row: JobRow, *events: tuple[float, str, int]) -> View:
    rows = tuple(EventRow(at, row.id, row.name, state, attempt) for at, state, attempt in events)
    return View(1, {}, {row.id: row}, rows)


def test_a_job_that_is_tried_twice_is_one_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.endpoint)
        provider = tracing.open_provider("sublet")
        traces = JobTraces(provider.get_tracer("test"))
        traces.take(view(ROW))
        traces.take(view(ROW, (110.0, "starting", 1), (111.0, "running", 1), (120.0, "waiting", 2)))
        again = replace(ENDED, attempt=2)
        traces.take(
            view(again, (125.0, "starting", 2), (126.0, "running", 2), (130.0, "finished", 2))
        )
        quick = replace(ENDED, id=8, submitted=140.0, code=0)
        traces.take(
            view(quick, (140.5, "starting", 1), (141.0, "running", 1), (142.0, "finished", 1))
        )
        old = replace(ENDED, id=9)
        traces.take(view(old))
        provider.shutdown()
    first, second = sorted(received.named("job"), key=lambda one: one.start_time_unix_nano)
    phases = [
        (one.name, one.start_time_unix_nano / 1e9, one.end_time_unix_nano / 1e9)
        for one in received.spans
        if one.parent_span_id == first.span_id
    ]
    assert phases == [
        ("wait", 100.0, 110.0),
        ("start", 110.0, 111.0),
        ("run", 111.0, 120.0),
        ("wait", 120.0, 125.0),
        ("start", 125.0, 126.0),
        ("run", 126.0, 130.0),
    ]
    assert {one.trace_id for one in received.spans[:7]} == {first.trace_id}
    assert (first.status.code, first.end_time_unix_nano) == (2, 130 * 10**9)
    assert attributes(first)["sublet.job.name"] == "train\ufffd.py"
    assert attributes(first)["sublet.exit_code"] == 1
    below = [one.name for one in received.spans if one.parent_span_id == second.span_id]
    assert (below, second.status.code) == (["wait", "start", "run"], 0)
    assert len(received.spans) == 11
