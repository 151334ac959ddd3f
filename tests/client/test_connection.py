"""Clients that outlive brokers: for how long they go on."""

import time
from pathlib import Path

import pytest

from sublet.client.connection import Reconnects
from sublet.errors import BrokerGone
from sublet.home import Home


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that is moved by hand, and by nobody who sleeps."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda _: None)
    return now


def test_brokers_that_end_one_soon_after_the_other_are_given_up(
    clock: list[float], tmp_path: Path
) -> None:
    reconnects = Reconnects(Home(tmp_path))
    for _ in range(20):
        clock[0] += 1.0
        reconnects.wait()
    clock[0] += 1.0
    with pytest.raises(BrokerGone, match="keeps crashing"):
        reconnects.wait()


def test_a_job_that_runs_for_days_outlives_any_number_of_brokers(
    clock: list[float], tmp_path: Path
) -> None:
    reconnects = Reconnects(Home(tmp_path))
    for _ in range(1000):
        clock[0] += 60.0
        reconnects.wait()
