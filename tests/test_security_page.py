"""Each promise in SECURITY.md names tests that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "SECURITY.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


def test_every_promise_names_a_test() -> None:
    promises = PAGE.partition("## What is promised")[2].partition("## What is not")[0]
    for promise in re.split(r"^- ", promises, flags=re.MULTILINE)[1:]:
        assert "::test_" in promise, promise


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_test_that_is_named_is_there(file: str, name: str) -> None:
    assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE)
