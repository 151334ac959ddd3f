"""Homes for the tests that need real processes."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from support.box import Box

# A machine under load is slow, and that is no failure. Where a run decides about a change (CI is
# set), the examples are the same each time; everywhere else they are new ones.
settings.register_profile("sublet", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("sublet")


@pytest.fixture(scope="session")
def shared_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """One warm home for all tests that leave it as they found it."""
    root = tmp_path_factory.mktemp("shared")
    box = Box(root / "home", root / "work", SUBLET_CPU_MEMORY="4GiB")
    box.warm()
    yield box
    box.close()


@pytest.fixture
def box(shared_box: Box, tmp_path: Path) -> Box:
    """The shared home with a working directory of the test's own."""
    mine = Box(shared_box.home, tmp_path / "work")
    mine.environ = dict(shared_box.environ)
    return mine


@pytest.fixture
def new_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Box]]:
    """Homes of the test's own, for tests that break them."""
    made: list[Box] = []

    def make(**environ: str) -> Box:
        # Not below the test's own directory: with its name, paths would be too long for sockets.
        root = tmp_path_factory.mktemp("box")
        made.append(Box(root / "home", root / "work", **environ))
        return made[-1]

    yield make
    for one in made:
        one.close()
