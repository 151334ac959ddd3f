"""State and ledger in step, on a disk that says no."""

import contextlib
from pathlib import Path

import pytest

from sublet.broker.events import Granted, Held, Released, Submitted, Withdrawn
from sublet.broker.ledger import Ledger
from sublet.broker.unit_of_work import UnitOfWork
from sublet.domain.job import Finished, Outcome, Paused, Waiting
from support.jobs import job, kept, lease


@pytest.fixture
def work(tmp_path: Path) -> UnitOfWork:
    return UnitOfWork(Ledger.open(tmp_path / "ledger.sqlite"))


def _break(work: UnitOfWork) -> None:
    """No write gets through from here on."""
    work.ledger._db.execute("PRAGMA query_only = 1")


def _mend(work: UnitOfWork) -> None:
    work.ledger._db.execute("PRAGMA query_only = 0")


def test_effects_of_a_decision_come_after_it_is_on_disk(work: UnitOfWork, tmp_path: Path) -> None:
    """Another reader of the file already sees what they rest on."""
    seen: list[int] = []

    def look() -> None:
        other = Ledger.open(tmp_path / "ledger.sqlite")
        seen.extend(one.id for one in other.live())
        other.close()

    work.decided(None, Submitted(job(1)), look)
    assert seen == []
    assert work.write() == ([], None)
    assert seen == [1]


def test_decisions_that_cannot_be_written_are_undone_and_have_no_effect(work: UnitOfWork) -> None:
    """Also two about the same job in one turn."""
    one = job(1)
    effects: list[str] = []
    _break(work)
    work.decided(None, Submitted(one), lambda: effects.append("accepted"))
    work.decided(one, Granted(1, 1.0, 1.0, lease()), lambda: effects.append("started"))
    undone, error = work.write()
    assert error is not None
    assert [before for before, _ in undone] == [one, None]
    assert work.state.jobs() == []
    _mend(work)
    work.write()
    assert effects == []
    assert work.ledger.live() == []


def test_what_has_happened_stays_true_and_is_written_when_the_disk_is_back(
    work: UnitOfWork,
) -> None:
    """What waits for it waits as long."""
    work.decided(None, Submitted(job(1)))
    work.write()
    forgotten: list[str] = []
    _break(work)
    work.happened(Withdrawn(1, 2.0, Outcome("stopped", 143)))
    work.when_written(lambda: forgotten.append("run"))
    assert work.write()[1] is not None
    assert work.state.jobs() == []
    assert forgotten == []
    assert len(work.ledger.live()) == 1
    _mend(work)
    assert work.write() == ([], None)
    assert work.ledger.live() == []
    assert forgotten == ["run"]


def test_what_has_happened_to_a_job_is_written_though_a_decision_about_it_was_undone(
    work: UnitOfWork,
) -> None:
    """Both in one turn, on a full disk."""
    work.decided(None, Submitted(job(1)))
    work.happened(Held(1, 2.0))
    work.write()
    _break(work)
    released = work.happened(Released(1, 3.0, 3.0))
    work.decided(released, Granted(1, 4.0, 4.0, lease()))
    undone, error = work.write()
    assert error is not None
    assert [before for before, _ in undone] == [released]
    _mend(work)
    assert work.write() == ([], None)
    (written,) = work.ledger.live()
    assert written.state == Waiting(1.0, 3.0)


def test_a_job_is_found_as_it_is_now_and_not_as_it_was_written(work: UnitOfWork) -> None:
    work.decided(None, Submitted(job(1)))
    work.write()
    work.happened(Withdrawn(1, 2.0, Outcome("cancelled", 143)))
    found = work.find(1)
    assert found is not None
    assert isinstance(found.state, Finished)
    work.write()
    assert work.find(1) == kept(found)
    assert work.find(2) is None


def test_what_is_left_by_an_exception_was_never_taken_in(work: UnitOfWork) -> None:
    """Of a unit, nothing stays: not in the state, not for the disk, and no effect."""
    work.decided(None, Submitted(job(1)))
    work.decided(None, Submitted(job(2)))
    work.write()
    before = work.state.jobs()
    effects: list[str] = []
    work.happened(Held(1, 2.0))
    with contextlib.suppress(ZeroDivisionError), work.unit():
        work.decided(None, Submitted(job(3)), lambda: effects.append("accepted"))
        work.happened(Released(1, 3.0, 3.0))
        work.happened(Withdrawn(2, 2.0, Outcome("cancelled", 143)))
        work.when_written(lambda: effects.append("forgotten"))
        work.answer(lambda: effects.append("done"), lambda error: effects.append("failed"))
        raise ZeroDivisionError
    (one, two) = work.state.jobs()
    assert isinstance(one.state, Paused)
    assert two == before[1]
    assert work.write() == ([], None)
    assert work.ledger.live() == [one, two]
    assert effects == []


def test_who_waits_for_an_answer_gets_one_from_a_disk_that_is_full(work: UnitOfWork) -> None:
    work.decided(None, Submitted(job(1)))
    work.write()
    told: list[str] = []
    _break(work)
    work.happened(Held(1, 2.0))
    work.answer(lambda: told.append("done"), lambda error: told.append(str(error)))
    assert work.write()[1] is not None
    assert len(told) == 1
    assert "readonly" in told[0]
    _mend(work)
    assert work.write() == ([], None)
    assert len(told) == 1
    work.answer(lambda: told.append("done"), lambda error: told.append(str(error)))
    assert work.news
    work.write()
    assert told[1:] == ["done"]
