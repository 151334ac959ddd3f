"""What an engine counts of a model: each request once, in samples that end when they should."""

import contextlib
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from sublet.engine.activity import Activity, quantile
from sublet.engine.requests import BatchKind, Part, Request
from sublet.engine.scheduler import Scheduler
from sublet.serving.metrics import Row

KIND = BatchKind("serving_default")


def part(arrived: float, started: float, rows: int = 1, stop: int | None = None) -> Part:
    request = Request(KIND, rows, arrived)
    request.started = started
    return Part(request, 0, rows if stop is None else stop)


def test_each_request_is_counted_by_its_times_and_each_batch_by_its_rows() -> None:
    activity = Activity()
    activity.note([part(0.0, 0.001), part(0.0005, 0.001, rows=3)], 4, 0.002, 0.003)
    activity.note([part(0.0, 0.004)], 1, 0.001, 0.005)
    report = activity.report()
    assert sum(report["latencies"]) == 3
    assert report["sizes"] == [1, 0, 1]
    assert report["rows"] == 5
    assert report["answered"] == pytest.approx(0.003 + 0.0025 + 0.005)
    assert report["computed"] == pytest.approx(0.003)


def test_a_split_request_counts_with_its_last_part_and_one_that_never_ran_not_at_all() -> None:
    activity = Activity()
    activity.note([part(0.0, 0.1, rows=100, stop=50)], 50, 0.1, 0.2)
    activity.note([part(0.0, 0.1, rows=100, stop=100)], 50, 0.1, 0.3)
    activity.note([part(0.0, 0.0)], 1, 0.0, 0.3)
    assert sum(activity.report()["latencies"]) == 1
    assert sum(activity.report()["sizes"]) == 3


def test_samples_hold_what_was_done_in_their_span_and_idle_spans_have_none() -> None:
    activity = Activity()
    for second in range(1, 26):
        activity.waiting = max(activity.waiting, second)
        activity.note([part(second - 0.01, second)] * 2, 2, 0.01, float(second))
    activity.note([part(999.99, 1000.0)], 1, 0.01, 1000.0)
    samples = activity.history(1005.0)
    first, middle, third = samples
    assert [one.began for one in samples] == [1.0, 11.0, 21.0]
    assert (first.requests, first.batches, first.rows) == (20, 10, 20)
    assert third.requests == 10
    assert (first.waiting, middle.waiting) == (11, 21)
    assert 0.008 < first.median < 0.017
    assert activity.latest(1005.0) is None
    latest = activity.latest(1011.0)
    assert latest is not None
    assert (latest.began, latest.requests) == (1000.0, 1)


def test_a_day_is_bounded_and_its_older_part_is_thinned() -> None:
    activity = Activity()
    for moment in range(0, 2 * 86_400, 5):
        activity.note([part(moment - 0.01, moment)], 1, 0.01, float(moment))
    history = activity.history(2.0 * 86_400)
    assert len(history) <= 360 + 288
    assert history[0].began >= 86_400 - 300
    ends = [one.began + one.seconds for one in history]
    assert all(end <= after.began + 300 for end, after in zip(ends, history[1:], strict=False))
    assert history[0].requests == 60


def test_quantiles_lie_where_the_requests_are() -> None:
    counts = [0] * 64
    counts[10] = 98  # Up to a millisecond.
    counts[20] = 2  # About a second.
    assert 0.0005 < quantile(counts, 0.5) <= 0.001024
    assert 0.5 < quantile(counts, 0.99) <= 1.05
    assert quantile([0] * 64, 0.99) == 0.0


@pytest.mark.parametrize("sampled", [False, True])
def test_what_an_engine_reports_of_a_version_is_understood_before_and_after_its_first_sample(
    sampled: bool,
) -> None:
    then, activity = time.monotonic() - 15, Activity()
    if sampled:
        activity.note([part(then - 0.002, then - 0.001)], 1, 0.001, then)
    figures = dict.fromkeys(("rows", "running", "requests", "batches"), 0)
    queue = SimpleNamespace(model="m", version=1, present=True, activity=activity, **figures)
    scheduler: Any = SimpleNamespace(
        store=SimpleNamespace(statistics=list),
        _lock=contextlib.nullcontext(),
        _queue=SimpleNamespace(queues={("m", 1): queue}),
    )
    (report,) = json.loads(json.dumps(Scheduler.models(scheduler)))
    latest = Row.read(report, "engine", "cpu").latest
    assert (latest is not None and latest.requests == 1) == sampled
