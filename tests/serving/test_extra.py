"""Serving without its extra says what to install."""

import sys

import pytest

from sublet.errors import BadRequest
from sublet.serving import extra


def test_what_is_missing_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extra.require()
    monkeypatch.setitem(sys.modules, "orjson", None)
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(BadRequest, match=r"google\.protobuf, orjson\..*'sublet\[serve\]'"):
        extra.require()
