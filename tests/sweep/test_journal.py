"""A sweep's directory: written, torn, read again, refused to others."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from sublet.errors import BadRequest
from sublet.home import Home
from sublet.sweeps import journal as journals
from sublet.sweeps import reading, records
from sublet.sweeps.journal import Journal
from sublet.sweeps.records import Settings, Trial, rank

SETTINGS = Settings("models", "build", {"a": {"choice": [1, 2]}}, "grid", "loss", "min", 2, 0, 0)


def begun(directory: Path) -> Journal:
    """A sweep of two trials, of which the first has ended."""
    journal = Journal.open(directory, "id", "name", SETTINGS)
    journal.append([records.TrialBegan(number, {"a": number}, 1.0) for number in range(2)])
    journal.append([records.RungBegan((0, 1), 2, 1.0)])
    journal.append([records.EpochEnded(0, 1, {"loss": 3.0}, 2.0)])
    journal.append([records.EpochEnded(0, 2, {"loss": 2.0, "mae": math.nan}, 3.0)])
    journal.append([records.TrialEnded(0, "done", 3.0), records.EpochEnded(1, 1, {"loss": 9.0}, 3)])
    return journal


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    journal = begun(tmp_path / "sweep")
    found = journals.read(tmp_path / "sweep")
    assert found is not None
    assert found.state == "running"
    first, second = found.trials
    assert (first.state, first.value, first.epochs) == ("done", 2.0, 2)
    assert first.curves["loss"] == (3.0, 2.0)
    assert all(math.isnan(value) for value in first.curves["mae"])
    assert (second.state, second.epochs) == ("running", 1)
    journal.close()
    left = journals.read(tmp_path / "sweep")
    assert left is not None
    assert left.state == "stopped"
    assert left.best is not None
    assert left.best.number == 0


@given(st.floats(0, 1))
def test_a_journal_that_was_cut_anywhere_is_read_and_goes_on(
    tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    directory = tmp_path_factory.mktemp("torn") / "sweep"
    begun(directory).close()
    path = directory / journals.JOURNAL
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    before = journals.read(directory)
    assert before is not None
    again = Journal.open(directory, "id", "name", SETTINGS)
    assert again.sweep.trials == before.trials
    again.append([records.TrialBegan(len(before.trials), {"a": 7}, 5.0)])
    again.close()
    after = journals.read(directory)
    assert after is not None
    assert len(after.trials) == len(before.trials) + 1


def test_a_directory_of_another_sweep_is_refused_with_what_differs(tmp_path: Path) -> None:
    begun(tmp_path / "sweep").close()
    other = structs.replace(SETTINGS, epochs=5, options={"batch_size": 8})
    with pytest.raises(BadRequest, match="epochs was 2, and is 5; batch size was null, and is 8"):
        Journal.open(tmp_path / "sweep", "id", "name", other)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(BadRequest, match="has files, but no sweep"):
        Journal.open(tmp_path, "id", "name", SETTINGS)


def test_one_process_at_a_time_works_on_a_sweep(tmp_path: Path) -> None:
    journal = begun(tmp_path / "sweep")
    with pytest.raises(BadRequest, match="Another process"):
        Journal.open(tmp_path / "sweep", "id", "name", SETTINGS)
    journal.close()
    Journal.open(tmp_path / "sweep", "id", "name", SETTINGS).close()


def test_recent_sweeps_are_found_wherever_they_are(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    own = reading.enter(home, "1-own", None)
    Journal.open(own, "1-own", "first", SETTINGS).close()
    named = tmp_path / "named"
    begun(named).close()
    for id in ("2-named", "3-named-again"):
        reading.enter(home, id, named)
    (home.sweeps / "4-broken").mkdir()
    assert [(one.id, one.name) for one in reading.recent(home)] == [
        ("3-named-again", "name"),
        ("1-own", "first"),
    ]
    found = reading.read(home, "1-own")
    assert found is not None
    assert found.directory == str(own)
    for id in ("2-named", "../home", "", "nothing"):
        assert reading.read(home, id) is None


def test_old_sweeps_leave_the_home_and_their_own_directories_stay(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    begun(tmp_path / "named").close()
    reading.enter(home, "000", tmp_path / "named")
    for number in range(1, reading.KEPT + 3):
        reading.enter(home, f"{number:03}", None)
    assert len(list(home.sweeps.iterdir())) == reading.KEPT
    assert journals.read(tmp_path / "named") is not None


@given(st.lists(st.one_of(st.none(), st.floats()), max_size=12), st.sampled_from(["min", "max"]))
def test_trials_without_a_finite_value_are_ranked_last(
    values: list[float | None], mode: records.Mode
) -> None:
    order = rank([Trial(n, {}, "done", value) for n, value in enumerate(values)], mode)
    finite = [one.value or 0.0 for one in order if records.is_number(one.value)]
    assert finite == sorted(finite, reverse=mode == "max")
    assert [one.value for one in order[: len(finite)]] == finite
