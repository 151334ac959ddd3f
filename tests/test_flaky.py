"""What becomes of a run in which a test fails (`support.flaky`)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import support

pytestmark = pytest.mark.slow

TESTS = str(Path(support.__file__).parents[1])
FLAKY = """
import os, pathlib
def test_passes(): pass
def test_fails_first(mark=pathlib.Path(__file__).with_name("failed")):
    if not mark.exists():
        mark.touch()
        raise AssertionError
def test_ends_its_process_first(mark=pathlib.Path(__file__).with_name("ended")):
    if not mark.exists():
        mark.touch()
        os._exit(3)
"""
BROKEN = "def test_fails(): raise AssertionError"


def run(directory: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    (directory / "conftest.py").write_text('pytest_plugins = ["support.flaky"]')
    environ = {**os.environ, "PYTHONPATH": TESTS, "PYTEST_ADDOPTS": ""}
    words = ("--numprocesses", "1", "--max-worker-restart", "1", *words)
    command = [sys.executable, "-m", "pytest", "--rootdir", str(directory), *words]
    return subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True)


def test_a_test_that_passes_alone_is_named_and_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FLAKY)
    ran = run(tmp_path, "--rerun-failed")
    assert ran.returncode == 0, ran.stdout
    first, second = ran.stdout.splitlines()[-2:]
    assert first.startswith("FLAKY test_it.py::test_fails_first:")
    assert second.startswith("FLAKY test_it.py::test_ends_its_process_first:")


def test_a_test_that_fails_again_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FLAKY + BROKEN)
    ran = run(tmp_path, "--rerun-failed")
    assert ran.returncode == 1
    assert "FLAKY test_it.py::test_fails:" not in ran.stdout


def test_without_the_option_nothing_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FLAKY)
    ran = run(tmp_path)
    assert ran.returncode == 1
    assert "FLAKY" not in ran.stdout


def test_many_failures_are_no_accident(tmp_path: Path) -> None:
    lines = [f"def test_{number}(): raise AssertionError" for number in range(11)]
    (tmp_path / "test_it.py").write_text("\n".join(lines))
    ran = run(tmp_path, "--rerun-failed")
    assert ran.returncode == 1
    assert "once more" not in ran.stdout
