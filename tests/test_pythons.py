"""Which Pythons the tests run on (`support.pythons`)."""

import subprocess
import sys
from pathlib import Path

import pytest

from support import pythons


@pytest.fixture
def shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `python3.12`, the only thing on the PATH beside a shell."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PYENV_VERSION", raising=False)
    path = tmp_path / "python3.12"
    path.touch(mode=0o700)
    return path


def test_a_python_that_is_not_there_is_not_run(shim: Path) -> None:
    assert pythons._interpreter("3.13") == ""


def test_a_name_behind_which_there_is_no_python_is_not_run(shim: Path) -> None:
    shim.write_text("#!/bin/sh\necho not installed >&2; exit 127\n")
    assert pythons._interpreter("3.12") == ""


def test_a_python_that_pyenv_has_is_run_though_it_is_not_its_chosen_one(shim: Path) -> None:
    shim.write_text(f'#!/bin/sh\n[ "$PYENV_VERSION" = 3.12 ] && exec {sys.executable} "$@"\n')
    assert pythons._interpreter("3.12") == sys.executable


def test_journeys_of_all_kinds_are_run_on_every_python() -> None:
    folders = {path.parent.name for path in pythons.marked()}
    assert folders >= {"faults", "journeys", "pool", "process"}


def test_readme_names_the_pythons_that_are_run() -> None:
    first, second, third = pythons.VERSIONS
    readme = (pythons.ROOT / "README.md").read_text()
    assert f"Python {first}, {second} and {third}" in readme
    compatibility = (pythons.ROOT / "docs/compatibility.md").read_text()
    assert all(f"| {version} | 2.21 |" in compatibility for version in pythons.VERSIONS)


@pytest.mark.slow
def test_the_run_of_all_tests_knows_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No tests are named there, so nothing but the directory leads pytest to its settings."""
    monkeypatch.setattr(sys, "argv", ["pythons", "--rerun-failed"])
    (flaky := tmp_path / "flaky").touch()
    ran = pythons._pytest(sys.executable, flaky, "--collect-only", "--ignore-glob=*")
    assert ran.returncode == pytest.ExitCode.NO_TESTS_COLLECTED


def test_the_last_lines_say_what_ran_where_and_what_was_flaky(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Python that is missing fails nothing; tests that fail on any of them do."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    first, second = (version for version in pythons.VERSIONS if version != own)
    there = {first: f"/bin/python{first}", second: ""}
    failing = set[str]()

    def run(command: list[str], captured: bool) -> "subprocess.CompletedProcess[str]":
        for word in command:
            if word.startswith("--name-flaky="):
                Path(word.partition("=")[2]).write_text("FLAKY tests/test_it.py::test_it\n")
        failed = any(word in failing for word in command)
        return subprocess.CompletedProcess(
            command, int(failed), "what it wrote" if captured else ""
        )

    monkeypatch.setattr(pythons, "_interpreter", there.__getitem__)
    monkeypatch.setattr(pythons, "_run", run)
    assert pythons.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"Python {second}: NOT RUN: no python{second} on the PATH runs" in lines
    assert f"Python {own}: all tests passed" in lines
    assert "what it wrote" in lines
    assert lines[-1] == "FLAKY tests/test_it.py::test_it"
    failing.add(str(pythons.ROOT / f".venv-{first}/bin/python"))
    assert pythons.main() == 1
    assert f"Python {first}: FAILED: tests that depend on it" in capsys.readouterr().out
    failing.add(f"PYTHON={there[first]}")
    assert pythons.main() == 1
    assert f"Python {first}: FAILED: the packages in " in capsys.readouterr().out
