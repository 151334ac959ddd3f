"""Pools in the test's own process, with workers of the shared home."""

import functools
import os
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

import sublet
from support.nodes import Nodes
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


@pytest.fixture(scope="session")
def nodes(real_processes: None) -> Iterator[Nodes]:
    """A Ray cluster of two nodes, each with a home and a broker of its own."""
    pytest.importorskip("ray", reason="Ray is installed for one Python only")
    with Nodes() as cluster:
        cluster.add(memory=2 << 30)
        cluster.add(memory=2 << 30)
        cluster.connect()
        yield cluster


@pytest.fixture(params=["local", "ray"])
def new_pool(request: pytest.FixtureRequest, home: Sandbox) -> Callable[..., sublet.Pool]:
    """Makes pools on this machine and on a cluster: what is promised holds for both."""
    if request.param == "ray":
        request.getfixturevalue("nodes")
    return functools.partial(sublet.Pool, on=request.param)


def _entered(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, directory: Path) -> Sandbox:
    for name in list(os.environ):
        if name.startswith("SUBLET"):
            monkeypatch.delenv(name)
    for name in ("SUBLET_HOME", "STANDIN", "LD_LIBRARY_PATH", "PATH"):
        if name in sandbox.environ:
            monkeypatch.setenv(name, sandbox.environ[name])
    monkeypatch.chdir(directory)
    return sandbox
