"""A ledger for the tests of what is kept in it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sublet.broker.ledger import Ledger
from support.ledgers import close_all


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """One in a file of the test's own."""
    opened = Ledger.open(tmp_path / "ledger.sqlite")
    yield opened
    opened.close()
    close_all()
