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
    for name in list(os.environ):
        if name.startswith("SUBLET"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SUBLET_HOME", str(shared_sandbox.home))
    monkeypatch.chdir(tmp_path)
    return shared_sandbox
