"""Whatever bytes come in, they harm nobody: the corpus and some inputs for each target."""

import pytest

from fuzz import driver

SECONDS = 2.0
MOST = 3000


@pytest.mark.parametrize("name", driver.names())
def test_no_input_does_harm(name: str) -> None:
    assert driver.run(name, SECONDS, seed=1, most=MOST) > 0
