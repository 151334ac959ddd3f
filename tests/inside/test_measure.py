"""Usage files, written and read back; other files beside them are passed over."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sublet.formats.lease import LeaseTerms
from sublet.formats.usage_file import read_usage
from sublet.inside import measure
from sublet.inside.measure import UsageWriter


def test_what_is_noted_is_read(tmp_path: Path, on_cpu: Callable[..., LeaseTerms]) -> None:
    usage = UsageWriter(on_cpu(tmp_path), 41)
    usage.note(main_started_ns=5)
    usage.note_failure(1000)
    usage.note_failure(0)
    usage.note(exit_code=0)
    (reading,) = read_usage(str(tmp_path))
    assert reading == usage.reading
    assert (reading.pid, reading.main_started_ns, reading.exit_code) == (41, 5, 0)
    assert (reading.failures, reading.asked) == (2, 1000)


def test_exit_is_unknown_until_it_is_noted(
    tmp_path: Path, on_cpu: Callable[..., LeaseTerms]
) -> None:
    UsageWriter(on_cpu(tmp_path), 41).note(main_started_ns=5)
    assert read_usage(str(tmp_path))[0].exit_code is None


def test_junk_is_passed_over(tmp_path: Path, on_cpu: Callable[..., LeaseTerms]) -> None:
    UsageWriter(on_cpu(tmp_path), 41).note(main_started_ns=5)
    (tmp_path / "inside-1").write_bytes(b"")
    (tmp_path / "inside-2").write_bytes(b"\x01" * 79)
    (tmp_path / "inside-3").write_bytes(b"\xff" * 80)
    (tmp_path / "inside-4").write_bytes((tmp_path / "inside-41").read_bytes() + b"x")
    (tmp_path / "inside-x").write_bytes((tmp_path / "inside-41").read_bytes())
    (tmp_path / "inside-5").mkdir()
    (tmp_path / "outside-6").write_bytes((tmp_path / "inside-41").read_bytes())
    assert [reading.pid for reading in read_usage(str(tmp_path))] == [41]


def test_no_directory_has_no_usage_files(tmp_path: Path) -> None:
    assert read_usage(str(tmp_path / "gone")) == []


def test_a_usage_file_that_cannot_be_written_is_nothing_to_the_program(
    tmp_path: Path, on_cpu: Callable[..., LeaseTerms]
) -> None:
    UsageWriter(on_cpu(tmp_path / "gone"), os.getpid()).note(main_started_ns=5)


@pytest.mark.slow
def test_a_look_that_fails_is_nothing_to_the_program(
    tmp_path: Path, on_cpu: Callable[..., LeaseTerms], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as at variables that another thread is just changing."""

    def fail(*_: object) -> None:
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr("sublet.inside.measure.lease_environment.too_late", fail)
    measure._look(UsageWriter(on_cpu(tmp_path), os.getpid()))
