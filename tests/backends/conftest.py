"""A harness for the tests of keepers and their launcher."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sublet.keeper.cgroup import Cgroup
from support.launcher_harness import LauncherHarness


@pytest.fixture
def launcher(real_processes: None, tmp_path: Path) -> Iterator[LauncherHarness]:
    """A launcher in a process of its own."""
    made = LauncherHarness(tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["with a control group", "without one"])
def any_shop(
    real_processes: None,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[LauncherHarness]:
    """The same, in both ways in which a tree can be held together."""
    if request.param == "without one":
        monkeypatch.setenv("SUBLET_NO_CGROUP", "1")
    elif (group := Cgroup.make("probe-of-a-test")) is None:
        pytest.skip("this user may make no control group (version 2)")
    else:
        group.close()
    made = LauncherHarness(tmp_path)
    yield made
    made.close()
