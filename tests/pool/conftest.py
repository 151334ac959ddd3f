"""Pools in the test's own process, with workers of the shared home."""

import os
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from support.sandbox import Sandbox


@pytest.fixture(scope="session", autouse=True)
def tracker() -> None:
    """multiprocessing's helper lives as long as this process: it must not get a test's home."""
    resource_tracker.ensure_running()


@pytest.fixture
def home(shared_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Sandbox:
    """The shared home, for pools that are made in this process."""
    return _entered(shared_sandbox, monkeypatch, tmp_path)


@pytest.fixture
def either_home(shared_home: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Sandbox:
    """The same on the CPU and on a card: workers find that by the environment of this process."""
    return _entered(shared_home, monkeypatch, tmp_path)


def _entered(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, directory: Path) -> Sandbox:
    for name in list(os.environ):
        if name.startswith("SUBLET"):
            monkeypatch.delenv(name)
    for name in ("SUBLET_HOME", "STANDIN", "LD_LIBRARY_PATH", "PATH"):
        if name in sandbox.environ:
            monkeypatch.setenv(name, sandbox.environ[name])
    monkeypatch.chdir(directory)
    return sandbox
