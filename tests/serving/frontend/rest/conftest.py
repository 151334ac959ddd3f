"""One front end for all tests that leave it as it was."""

from collections.abc import Iterator

import pytest

from support.rest_server import Client, RestServer, rest_server


@pytest.fixture(scope="module")
def served() -> Iterator[RestServer]:
    """With the models of `support.numpy_backend`."""
    with rest_server() as made:
        yield made


@pytest.fixture
def client(served: RestServer) -> Iterator[Client]:
    """A connection to it."""
    with served.client() as made:
        yield made
