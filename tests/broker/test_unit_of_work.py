"""State and ledger in step, on a disk that says no."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sublet.broker.effects import Confirmation, ForgetAttempt, Launch, SettleNested
from sublet.broker.events import Granted, Held, Released, Submitted, Withdrawn
from sublet.broker.ledger import Ledger
from sublet.broker.unit_of_work import CommitFailed, Committed, UnitOfWork
from sublet.domain.job import Finished, Outcome, Paused, Waiting
from sublet.reactor import Reactor
from sublet.wire.messages import Done
from support.client import Client
from support.jobs import job, kept, lease

NOTHING = Committed([], [], [])


@pytest.fixture
def work(tmp_path: Path) -> UnitOfWork:
    return UnitOfWork(Ledger.open(tmp_path / "ledger.sqlite"))


@pytest.fixture
def confirmation() -> Iterator[Confirmation]:
    """An answer for somebody who waits."""
    reactor = Reactor()
    client = Client(reactor)
    yield Confirmation(client.connection, Done(("done",)))
    client.close()
    reactor.close()


def _failure(work: UnitOfWork) -> CommitFailed:
    """Commit, which must fail; how it did."""
    result = work.commit()
    assert isinstance(result, CommitFailed)
    return result


def _success(work: UnitOfWork) -> Committed:
    """Commit, which must not fail."""
    result = work.commit()
    assert isinstance(result, Committed)
    return result


def _break(work: UnitOfWork) -> None:
    """No write gets through from here on."""
    work.ledger._db.execute("PRAGMA query_only = 1")


def _mend(work: UnitOfWork) -> None:
    work.ledger._db.execute("PRAGMA query_only = 0")


def test_effects_of_a_decision_come_after_it_is_on_disk(work: UnitOfWork, tmp_path: Path) -> None:
    """They are handed out when another reader of the file already sees what they rest on."""
    work.decided(None, Submitted(job(1)), Launch(1))
    assert _success(work).effects == [Launch(1)]
    other = Ledger.open(tmp_path / "ledger.sqlite")
    assert [one.id for one in other.live()] == [1]
    other.close()
    assert work.commit() == NOTHING


def test_decisions_that_cannot_be_written_are_undone_and_have_no_effect(work: UnitOfWork) -> None:
    """Also two about the same job in one turn."""
    one = job(1)
    _break(work)
    work.decided(None, Submitted(one), SettleNested(None))
    work.decided(one, Granted(1, 1.0, 1.0, lease()), Launch(1))
    assert [before for before, _ in _failure(work).undone] == [one, None]
    assert work.state.jobs() == []
    _mend(work)
    assert work.commit() == NOTHING
    assert work.ledger.live() == []


def test_what_has_happened_stays_true_and_is_written_when_the_disk_is_back(
    work: UnitOfWork,
) -> None:
    """What waits for it waits as long."""
    work.decided(None, Submitted(job(1)))
    work.commit()
    _break(work)
    work.happened(Withdrawn(1, 2.0, Outcome("stopped", 143)), ForgetAttempt("1.1"))
    assert _failure(work).undone == []
    assert work.state.jobs() == []
    assert len(work.ledger.live()) == 1
    _mend(work)
    committed = _success(work)
    assert committed.effects == [ForgetAttempt("1.1")]
    assert [type(change.event) for change in committed.changes] == [Withdrawn]
    assert work.ledger.live() == []


def test_what_has_happened_to_a_job_is_written_though_a_decision_about_it_was_undone(
    work: UnitOfWork,
) -> None:
    """Both in one turn, on a full disk."""
    work.decided(None, Submitted(job(1)))
    work.happened(Held(1, 2.0))
    work.commit()
    _break(work)
    released = work.happened(Released(1, 3.0, 3.0))
    work.decided(released, Granted(1, 4.0, 4.0, lease()))
    assert [before for before, _ in _failure(work).undone] == [released]
    _mend(work)
    committed = _success(work)
    assert committed.effects == []
    assert [type(change.event) for change in committed.changes] == [Released]
    (written,) = work.ledger.live()
    assert written.state == Waiting(1.0, 3.0)


def test_a_job_is_found_as_it_is_now_and_not_as_it_was_written(work: UnitOfWork) -> None:
    work.decided(None, Submitted(job(1)))
    work.commit()
    work.happened(Withdrawn(1, 2.0, Outcome("cancelled", 143)))
    found = work.find(1)
    assert found is not None
    assert isinstance(found.state, Finished)
    work.commit()
    assert work.find(1) == kept(found)
    assert work.find(2) is None


def test_what_is_left_by_an_exception_was_never_taken_in(
    work: UnitOfWork, confirmation: Confirmation
) -> None:
    """Of a unit, nothing stays: not in the state, not for the disk, and no effect."""
    work.decided(None, Submitted(job(1)))
    work.decided(None, Submitted(job(2)))
    work.commit()
    before = work.state.jobs()
    work.happened(Held(1, 2.0))
    with contextlib.suppress(ZeroDivisionError), work.atomic():
        work.decided(None, Submitted(job(3)), Launch(3))
        work.happened(Released(1, 3.0, 3.0))
        work.happened(Withdrawn(2, 2.0, Outcome("cancelled", 143)))
        work.after_commit(ForgetAttempt("2.1"))
        work.confirm(confirmation)
        raise ZeroDivisionError
    (one, two) = work.state.jobs()
    assert isinstance(one.state, Paused)
    assert two == before[1]
    committed = _success(work)
    assert (committed.effects, committed.confirmations) == ([], [])
    assert [type(change.event) for change in committed.changes] == [Held]
    assert work.ledger.live() == [one, two]


def test_who_waits_for_an_answer_gets_one_from_a_disk_that_is_full(
    work: UnitOfWork, confirmation: Confirmation
) -> None:
    """Once: either that it failed, or that it is done."""
    work.decided(None, Submitted(job(1)))
    work.commit()
    _break(work)
    work.happened(Held(1, 2.0))
    work.confirm(confirmation)
    failed = _failure(work)
    assert "readonly" in str(failed.error)
    assert failed.confirmations == [confirmation]
    _mend(work)
    assert _success(work).confirmations == []
    work.confirm(confirmation)
    assert work.pending
    assert _success(work).confirmations == [confirmation]
