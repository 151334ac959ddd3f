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
def books(tmp_path: Path) -> UnitOfWork:
    return UnitOfWork(Ledger.open(tmp_path / "ledger.sqlite"))


def _break(books: UnitOfWork) -> None:
    """No write gets through from here on."""
    books.ledger._db.execute("PRAGMA query_only = 1")


def _mend(books: UnitOfWork) -> None:
    books.ledger._db.execute("PRAGMA query_only = 0")


def test_effects_of_a_decision_come_after_it_is_on_disk(books: UnitOfWork, tmp_path: Path) -> None:
    """Another reader of the file already sees what they rest on."""
    seen: list[int] = []

    def look() -> None:
        other = Ledger.open(tmp_path / "ledger.sqlite")
        seen.extend(one.id for one in other.live())
        other.close()

    books.decided(None, Submitted(job(1)), look)
    assert seen == []
    assert books.write() == ([], None)
    assert seen == [1]


def test_decisions_that_cannot_be_written_are_undone_and_have_no_effect(books: UnitOfWork) -> None:
    """Also two about the same job in one turn."""
    one = job(1)
    effects: list[str] = []
    _break(books)
    books.decided(None, Submitted(one), lambda: effects.append("accepted"))
    books.decided(one, Granted(1, 1.0, 1.0, lease()), lambda: effects.append("started"))
    undone, error = books.write()
    assert error is not None
    assert [before for before, _ in undone] == [one, None]
    assert books.state.jobs() == []
    _mend(books)
    books.write()
    assert effects == []
    assert books.ledger.live() == []


def test_what_has_happened_stays_true_and_is_written_when_the_disk_is_back(
    books: UnitOfWork,
) -> None:
    """What waits for it waits as long."""
    books.decided(None, Submitted(job(1)))
    books.write()
    forgotten: list[str] = []
    _break(books)
    books.happened(Withdrawn(1, 2.0, Outcome("stopped", 143)))
    books.when_written(lambda: forgotten.append("run"))
    assert books.write()[1] is not None
    assert books.state.jobs() == []
    assert forgotten == []
    assert len(books.ledger.live()) == 1
    _mend(books)
    assert books.write() == ([], None)
    assert books.ledger.live() == []
    assert forgotten == ["run"]


def test_what_has_happened_to_a_job_is_written_though_a_decision_about_it_was_undone(
    books: UnitOfWork,
) -> None:
    """Both in one turn, on a full disk."""
    books.decided(None, Submitted(job(1)))
    books.happened(Held(1, 2.0))
    books.write()
    _break(books)
    released = books.happened(Released(1, 3.0, 3.0))
    books.decided(released, Granted(1, 4.0, 4.0, lease()))
    undone, error = books.write()
    assert error is not None
    assert [before for before, _ in undone] == [released]
    _mend(books)
    assert books.write() == ([], None)
    (written,) = books.ledger.live()
    assert written.state == Waiting(1.0, 3.0)


def test_a_job_is_found_as_it_is_now_and_not_as_it_was_written(books: UnitOfWork) -> None:
    books.decided(None, Submitted(job(1)))
    books.write()
    books.happened(Withdrawn(1, 2.0, Outcome("cancelled", 143)))
    found = books.find(1)
    assert found is not None
    assert isinstance(found.state, Finished)
    books.write()
    assert books.find(1) == kept(found)
    assert books.find(2) is None


def test_what_is_left_by_an_exception_was_never_taken_in(books: UnitOfWork) -> None:
    """Of a unit, nothing stays: not in the state, not for the disk, and no effect."""
    books.decided(None, Submitted(job(1)))
    books.decided(None, Submitted(job(2)))
    books.write()
    before = books.state.jobs()
    effects: list[str] = []
    books.happened(Held(1, 2.0))
    with contextlib.suppress(ZeroDivisionError), books.unit():
        books.decided(None, Submitted(job(3)), lambda: effects.append("accepted"))
        books.happened(Released(1, 3.0, 3.0))
        books.happened(Withdrawn(2, 2.0, Outcome("cancelled", 143)))
        books.when_written(lambda: effects.append("forgotten"))
        books.answer(lambda: effects.append("done"), lambda error: effects.append("failed"))
        raise ZeroDivisionError
    (one, two) = books.state.jobs()
    assert isinstance(one.state, Paused)
    assert two == before[1]
    assert books.write() == ([], None)
    assert books.ledger.live() == [one, two]
    assert effects == []


def test_who_waits_for_an_answer_gets_one_from_a_disk_that_is_full(books: UnitOfWork) -> None:
    books.decided(None, Submitted(job(1)))
    books.write()
    told: list[str] = []
    _break(books)
    books.happened(Held(1, 2.0))
    books.answer(lambda: told.append("done"), lambda error: told.append(str(error)))
    assert books.write()[1] is not None
    assert len(told) == 1
    assert "readonly" in told[0]
    _mend(books)
    assert books.write() == ([], None)
    assert len(told) == 1
    books.answer(lambda: told.append("done"), lambda error: told.append(str(error)))
    assert books.news
    books.write()
    assert told[1:] == ["done"]
