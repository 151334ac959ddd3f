"""Event files: what is read of them, while they are written and when they are damaged."""

import math
import os
import time
from pathlib import Path

import pytest

from sublet.event_file import EventFile, Scalar
from support import event_files as made

LOSS = [made.event(step, made.simple("loss", 1 / step)) for step in range(1, 4)]


def read(file: EventFile) -> list[Scalar]:
    return list(file.read(time.monotonic() + 1e9))


def written(tmp_path: Path, data: bytes) -> EventFile:
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(data)
    return EventFile(str(path))


def test_scalars_of_both_kinds_are_read_and_nothing_else(tmp_path: Path) -> None:
    events = (
        made.event(7, made.simple("old", 0.5), made.tensor("new", 0.25), at=12.5),
        made.event(8, made.tensor("text", 0.0, plugin="text"), made.field(1, b"no value")),
        made.event(9, made.field(8, bytes(1 << 17))),
        made.event(-1, made.simple("old", math.nan)),
    )
    found = read(written(tmp_path, made.file(*events)))
    assert found[:2] == [Scalar("old", 7, 0.5, 12.5), Scalar("new", 7, 0.25, 12.5)]
    assert [(one.tag, one.step) for one in found[2:]] == [("old", -1)]
    assert math.isnan(found[2].value)


def test_a_file_that_grows_is_read_once_however_it_is_cut(tmp_path: Path) -> None:
    data = made.file(*LOSS)
    file = written(tmp_path, b"")
    found = []
    for size in range(len(data) + 1):
        Path(file.path).write_bytes(data[:size])
        found += read(file)
    assert [(one.step, file.damaged) for one in found] == [(1, False), (2, False), (3, False)]


def test_every_damaged_byte_ends_the_file_there_and_makes_up_nothing(tmp_path: Path) -> None:
    data = made.file(*LOSS)
    good = read(written(tmp_path, data))
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0xFF
        found = read(file := written(tmp_path, bytes(damaged)))
        assert found == good[: len(found)]
        assert file.damaged or len(found) == 3 or place < len(made.file())


def test_a_file_that_is_cut_off_or_a_pipe_counts_as_damaged(tmp_path: Path) -> None:
    file = written(tmp_path, made.file(*LOSS))
    read(file)
    os.truncate(file.path, 10)
    assert (read(file), file.damaged) == ([], True)
    os.mkfifo(tmp_path / "pipe")
    pipe = EventFile(str(tmp_path / "pipe"))
    assert (read(pipe), pipe.damaged) == ([], True)


def test_what_there_is_no_time_for_comes_the_next_time(tmp_path: Path) -> None:
    file = written(tmp_path, made.file(*LOSS))
    assert list(file.read(time.monotonic() - 1.0)) == []
    assert len(read(file)) == 3
    with pytest.raises(FileNotFoundError):
        read(EventFile(str(tmp_path / "none")))
