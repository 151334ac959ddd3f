"""Sweeps on the page: bounded, as text, and read again only when there is something new."""

import math
from pathlib import Path

import pytest

from sublet.errors import BadRequest
from sublet.home import Home
from sublet.page.sweeps import SweepReader
from sublet.sweeps import reading
from sublet.sweeps.journal import JOURNAL, Journal
from sublet.sweeps.records import EpochEnded, Event, Settings, TrialBegan, TrialEnded

SPACE = {"lr": {"loguniform": [1e-4, 1.0]}, "name": ["a", "b"]}


def begin(home: Home, name: str = "one", metric: str = "loss") -> Journal:
    settings = Settings("models", "build", SPACE, "random", metric, "min", 1000, 0, 0)
    directory = reading.enter(home, id := reading.new_id(), None)
    return Journal.open(directory, id, name, settings)


def trained(number: int, epochs: int, **params: object) -> list[Event]:
    logs = [
        EpochEnded(number, epoch, {"loss": number + 1 / epoch}, 1.0)
        for epoch in range(1, epochs + 1)
    ]
    return [TrialBegan(number, params, 1.0), *logs, TrialEnded(number, "done", 2.0)]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.make()
    return made


def test_a_sweep_is_listed_and_shown_best_first(home: Home) -> None:
    reader = SweepReader(home)
    assert reader.rows() == []
    journal = begin(home, "a\u202eb")
    journal.append(trained(0, 3, lr=0.5, name="a"))
    journal.append([TrialBegan(1, {"lr": math.inf, "name": ["x\n"], "more": 2**80}, 1.0)])
    (row,) = reader.rows()
    assert (row.name, row.state, row.counts) == ("a\ufffdb", "running", {"done": 1, "waiting": 1})
    page = reader.page(row.id, "")
    assert page is not None
    assert [(one.name, one.logarithmic) for one in page.parameters] == [
        ("lr", True),
        ("name", False),
        ("more", False),
    ]
    first, second = page.trials
    assert (first.number, first.params, first.curve) == (0, (0.5, "a", None), (1.0, 0.5, 1 / 3))
    assert second.params == (None, "['x\\n']", str(2**80))
    assert reader.page(row.id, page.version) is None
    journal.append(trained(1, 1)[1:])
    assert reader.page(row.id, page.version) is not None
    journal.close()
    assert reader.rows()[0].state == "stopped"


def test_what_is_sent_is_bounded(home: Home) -> None:
    journal = begin(home)
    for number in range(150):
        journal.append([TrialBegan(number, {f"p{number}": 1}, 1.0)])
    journal.append(trained(0, 1000)[1:])
    reader = SweepReader(home)
    page = reader.page(reader.rows()[0].id, "")
    journal.close()
    assert page is not None
    assert len(page.parameters) <= 30
    best = page.trials[0]
    assert (best.every, len(best.curve), best.curve[-1]) == (5, 200, 1 / 1000)
    assert sum(bool(trial.curve) for trial in page.trials) <= 100


@pytest.mark.parametrize("name", ["none", "..", ".", "", "../../etc", "a/b", "x" * 500, "\0"])
def test_a_sweep_that_is_not_there_is_an_error_and_reads_nothing(home: Home, name: str) -> None:
    begin(home).close()
    with pytest.raises(BadRequest):
        SweepReader(home).page(name, "")


def test_a_damaged_sweep_is_left_out_and_the_others_stay(home: Home) -> None:
    begin(home, "whole").close()
    broken = begin(home, "broken")
    broken.close()
    (broken.directory / "sweep.json").write_text("{")
    (broken.directory / JOURNAL).write_text("{\n")
    assert [row.name for row in SweepReader(home).rows()] == ["whole"]
