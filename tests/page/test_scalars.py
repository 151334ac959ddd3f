"""Learning curves: whose files count, what runs are called, and how much is kept."""

import math
import os
from pathlib import Path

from sublet.domain.job import EventLog
from sublet.event_file import Scalar
from sublet.page.curves import MOST_POINTS, Curve
from sublet.page.scalars import ScalarReader, is_of, run_names
from support import event_files as made

MINE = "events.out.tfevents.2000.host.17.0.v2"


def test_a_curve_is_bounded_and_keeps_its_peaks_and_its_end() -> None:
    curve = Curve()
    for step in range(100_000):
        value = {40_123: 9.0, 70_001: -9.0, 50_000: math.nan}.get(step, math.sin(step / 1000))
        curve.add(Scalar("loss", step, value, float(step)))
    points = curve.points()
    values = [value for _, value, _ in points]
    assert len(points) <= MOST_POINTS
    assert {9.0, -9.0} <= set(values)
    assert points[-1][0] == 99_999
    assert [step for step, _, _ in points] == sorted({step for step, _, _ in points})


def test_a_run_that_began_anew_replaces_what_it_does_again() -> None:
    curve = Curve()
    for step, value in ((1, 0.5), (2, 0.4), (3, math.inf), (2, 0.3)):
        curve.add(Scalar("loss", step, value, 0.0))
    assert [point[:2] for point in curve.points()] == [(1, 0.5), (2, 0.3)]


def test_only_files_of_the_process_count() -> None:
    log = EventLog("/logs", 17, 2000.0)
    assert is_of(MINE, log)
    assert is_of("events.out.tfevents.2001.host", log)
    assert not is_of("events.out.tfevents.1990.host", log)
    assert not is_of("events.out.tfevents.2000.host.18.0.v2", log)
    assert not is_of("notes.txt", log)


def test_runs_are_called_by_what_is_different() -> None:
    assert run_names(["/a/logs/train", "/a/logs/validation"]) == {
        "/a/logs/train": "train",
        "/a/logs/validation": "validation",
    }
    assert run_names(["/a/logs"]) == {"/a/logs": "logs"}
    assert run_names(["gs://bucket/logs", "/a/logs"])["/a/logs"] == "/a/logs"
    assert run_names([]) == {}


def test_curves_of_several_runs_meet_by_tag_and_are_read_once(tmp_path: Path) -> None:
    logs = [EventLog(str(tmp_path / name), 17, 2000.0) for name in ("train", "validation")]
    reader = ScalarReader()
    empty = reader.read("1.1", logs)
    assert empty is not None
    assert empty.tags == ()
    for number, log in enumerate(logs):
        os.mkdir(log.directory)
        events = [made.event(step, made.simple("loss", number)) for step in range(3)]
        Path(log.directory, MINE).write_bytes(made.file(*events))
    found = reader.read("1.1", logs, empty.version)
    assert found is not None
    (tag,) = found.tags
    assert (tag.tag, [curve.run for curve in tag.curves]) == ("loss", ["train", "validation"])
    assert [point[:2] for point in tag.curves[1].points] == [(0, 1.0), (1, 1.0), (2, 1.0)]
    assert reader.read("1.1", logs, found.version) is None
    Path(logs[0].directory, MINE).write_bytes(b"x" * 100)
    damaged = reader.read("1.1", logs, found.version)
    assert damaged is not None
    assert "damaged" in damaged.faults[0]


def test_a_directory_elsewhere_is_said_to_be_elsewhere() -> None:
    found = ScalarReader().read("1.1", [EventLog("gs://bucket/logs", 17, 2000.0)])
    assert found is not None
    assert found.faults == ("gs://bucket/logs is not on this machine",)
