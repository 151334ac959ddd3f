"""The lease in its environment variable."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sublet.formats.lease import LeaseTerms
from sublet.inside import current_lease


@pytest.fixture(autouse=True)
def _unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has seen no lease and said nothing yet."""
    monkeypatch.delenv("SUBLET_LEASE", raising=False)
    for name, value in (("_seen", None), ("_current", None), ("_said", set())):
        monkeypatch.setattr(current_lease, name, value)


def test_lease_survives_its_way_through_the_environment(
    on_gpu: Callable[..., LeaseTerms], monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = on_gpu("/run/a1")
    monkeypatch.setenv("SUBLET_LEASE", lease.to_json())
    assert current_lease.current() == lease


def test_no_lease_is_no_lease(capsys: pytest.CaptureFixture[str]) -> None:
    assert current_lease.current() is None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "7",
        "{}",
        '{"job":1,"attempt":1,"token":"t","device":"cpu","kind":"tpu","uuid":null,'
        '"ceiling":1,"capacity":1,"dir":"/"}',
        '{"job":1,"attempt":1,"token":"t","device":"cpu","kind":"cpu","uuid":null,'
        '"ceiling":0,"capacity":1,"dir":"/"}',
        '{"job":null,"attempt":1,"token":"t","device":"cpu","kind":"cpu","uuid":null,'
        '"ceiling":2,"capacity":1,"dir":"/"}',
    ],
)
def test_lease_that_cannot_be_read_is_none_and_said_in_one_line(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUBLET_LEASE", text)
    assert current_lease.current() is None
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("sublet: SUBLET_LEASE cannot be read")
