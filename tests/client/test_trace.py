"""A time line in the trace event format, of the broker's views and what programs have recorded."""

import json
from typing import Any

from msgspec.structs import replace

from sublet.client.snapshot_feed import View
from sublet.client.trace import Clocks, Trace
from sublet.domain.device import Device
from sublet.wire.rows import DeviceRow, JobRow

MIB = 1 << 20
SECOND = 10**9
WAITS = JobRow(7, "sweep.py", "waiting", "#3 has the memory", 96.0, 1, "7.1", "normal",
               "guaranteed", "auto", since=96.0)  # fmt: skip
RUNS = JobRow(3, "train.py", "running", "", 90.0, 1, "3.1", "normal", "guaranteed", "auto",
              device="cpu", ceiling=64 * MIB, floor=64 * MIB, since=95.0, waited=2.0,
              now=10 * MIB)  # fmt: skip
CPU = Device("cpu", "cpu", "CPU", 1024 * MIB, None, None, "for tests")
DEVICE = DeviceRow(CPU, leased=64 * MIB, strangers=5 * MIB, standing=0, free=900 * MIB)


def view(*rows: JobRow) -> View:
    return View(0, {"cpu": DEVICE}, {row.id: row for row in rows})


def document(trace: Trace, until: int) -> list[dict[str, Any]]:
    """The events; each has what Chrome and Perfetto need of its kind."""
    read = json.loads(trace.document("cpu", until))
    needed = {"X": {"ts", "dur"}, "i": {"ts", "s"}, "C": {"ts", "args"}, "M": {"args"}}
    for event in read["traceEvents"]:
        assert {"name", "ph", "pid", "tid"} <= event.keys()
        assert needed[event["ph"]] <= event.keys()
        assert event["ph"] == "M" or event["ts"] >= 0
        assert event.get("dur", 0) >= 0
    return read["traceEvents"]  # type: ignore[no-any-return]


def test_leases_and_waits_are_spans_and_marks_on_one_clock() -> None:
    """Second 100 of the wall clock is tick 0."""
    trace = Trace(Clocks(100.0, 0))
    trace.see(view(RUNS, WAITS), 0)
    trace.see(view(replace(RUNS, ceiling=80 * MIB), WAITS), SECOND)
    trace.see(view(replace(RUNS, ceiling=72 * MIB), WAITS), 2 * SECOND)
    trace.see(
        view(
            replace(RUNS, state="finished", since=103.0),
            replace(WAITS, state="running", since=103.5, device="cpu", ceiling=8 * MIB),
        ),
        4 * SECOND,
    )
    trace.see(view(replace(RUNS, state="finished", since=103.0)), 5 * SECOND)
    events = document(trace, 5 * SECOND)
    spans = {(one["pid"], one["name"]): one for one in events if one["ph"] == "X"}
    # The earliest event is at second 93: #3 waited from there to 95.
    assert (spans[3, "waiting"]["ts"], spans[3, "waiting"]["dur"]) == (0, 2e6)
    assert (spans[3, "running"]["ts"], spans[3, "running"]["dur"]) == (2e6, 8e6)
    reason = spans[7, "waiting: #3 has the memory"]
    assert (reason["ts"], reason["dur"]) == (3e6, 7.5e6)
    assert (spans[7, "running"]["ts"], spans[7, "running"]["dur"]) == (10.5e6, 1.5e6)
    marks = [(one["pid"], one["name"]) for one in events if one["ph"] == "i"]
    assert marks == [
        (3, "granted 64.0 MiB"),
        (3, "raised to 80.0 MiB"),
        (3, "trimmed to 72.0 MiB"),
        (3, "released 72.0 MiB"),
        (7, "granted 8.0 MiB"),
    ]
    leased = [one["args"]["MiB"] for one in events if one["name"].startswith("leased")]
    assert leased == [64, 64, 80, 72, 0, 8]  # The device's first, and then each program's.


def test_steps_and_operations_have_tracks_of_their_own() -> None:
    trace = Trace(Clocks(100.0, 0))
    trace.see(view(RUNS), 0)
    part: list[list[Any]] = [
        ["hello", 41],
        ["step", "MainThread", "train step 0", 5, 1000],
        ["op", "tf_Compute/1", "MatMul", 10, 300],
        ["memory", 20, 12 * MIB],
        ["memory", "broken", None],
        ["something newer"],
    ]
    trace.add_part(3, 41, part, several=False)
    trace.add_part(3, 42, [["step", "Thread-1", "step", 7, 9]], several=True)
    events = document(trace, SECOND)
    names = {
        (one["pid"], one["tid"]): one["args"]["name"]
        for one in events
        if one["name"] == "thread_name"
    }
    tracks = {names[one["pid"], one["tid"]]: one["name"] for one in events if one["ph"] == "X"}
    assert tracks.pop("lease") == "running"
    assert tracks == {
        "steps": "train step 0",
        "steps in Thread-1 of process 42": "step",
        "TensorFlow: tf_Compute/1": "MatMul",
    }
    # What a program measures itself is finer than what the broker has seen.
    used = [one for one in events if one["ph"] == "C" and one["pid"] == 3 and "used" in one["name"]]
    assert [one["args"]["MiB"] for one in used] == [12]


def test_programs_on_other_devices_are_left_out() -> None:
    trace = Trace(Clocks(100.0, 0))
    trace.see(view(RUNS, replace(RUNS, id=4, device="gpu0")), 0)
    assert {one["pid"] for one in document(trace, SECOND) if one["ph"] == "X"} == {3}
