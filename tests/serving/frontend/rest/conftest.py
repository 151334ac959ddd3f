"""One front end for all tests that leave it as it was."""

from collections.abc import Iterator

import pytest

from support.rest import Client, House, house


@pytest.fixture(scope="module")
def served() -> Iterator[House]:
    """With the models of `support.desk`."""
    with house() as made:
        yield made


@pytest.fixture
def client(served: House) -> Iterator[Client]:
    """A connection to it."""
    with served.client() as made:
        yield made
