"""A process with TensorFlow for the tests that need one."""

from collections.abc import Iterator

import pytest

from support.leased import Leased


@pytest.fixture(scope="package")
def tensorflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Leased]:
    """TensorFlow with a pool of 96 MiB, shared by all tests here."""
    child = Leased(tmp_path_factory.mktemp("records"), 96)
    yield child
    child.close()
