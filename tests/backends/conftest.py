"""A workshop for the tests of keepers and their launcher."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.workshop import Workshop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Workshop]:
    """A launcher in a process of its own."""
    made = Workshop(tmp_path)
    yield made
    made.close()
