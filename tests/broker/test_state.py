"""What the broker knows, and that nothing but a fitting event changes it."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from sublet.broker.events import (
    AttemptEnded,
    Event,
    Granted,
    Held,
    NeverRan,
    Postponed,
    Released,
    Reopened,
    StopAsked,
    Submitted,
    Undone,
    Withdrawn,
    WorkerStarted,
)
from sublet.broker.state import State
from sublet.domain.job import (
    Again,
    Finished,
    Job,
    Outcome,
    Past,
    Paused,
    Running,
    Starting,
    Waiting,
)
from sublet.errors import InternalError
from sublet.units import MiB
from support.jobs import KEEPER, WORKER, job, lease

DONE = Outcome("exited", 0)
LARGER = Again("ran out of memory", least=768 * MiB, forgiven=True)
OOM = Outcome("lease exceeded", 1)
NAMES = ("waiting", "starting", "running", "held", "caught", "stopped", "gone")
"""Held, caught and stopped are paused: while it waited, while it was started, while it ran."""

# Which events fit a job in which state: the drawing at the top of the module, as a table.
FITTING = {
    Granted: ("waiting",),
    Withdrawn: ("waiting", "held"),
    WorkerStarted: ("starting", "caught"),
    NeverRan: ("starting", "running", "caught", "stopped"),
    Postponed: ("starting", "caught"),
    AttemptEnded: ("starting", "running", "caught", "stopped"),
    StopAsked: ("starting", "running", "caught", "stopped"),
    Held: ("waiting", "starting", "running"),
    Released: ("held", "caught", "stopped"),
}


def events(number: int, attempt: int) -> list[Event]:
    """One of each kind that is about a job which is known already."""
    return [
        Granted(number, 2.0, 5.0, lease()),
        Withdrawn(number, 2.0, DONE),
        WorkerStarted(number, attempt, 3.0, KEEPER, WORKER, "warm"),
        NeverRan(number, attempt, 3.0),
        Postponed(number, attempt),
        AttemptEnded(number, attempt, 4.0, DONE),
        AttemptEnded(number, attempt, 4.0, OOM, LARGER),
        StopAsked(number, "its client ended"),
        Held(number, 6.0),
        Released(number, 7.0, 9.0),
    ]


def name_of(one: Job | None) -> str:
    if one is None:
        return "gone"
    if isinstance(one.state, Paused):
        return {Waiting: "held", Starting: "caught", Running: "stopped"}[type(one.state.was)]
    return type(one.state).__name__.lower()


def state_with(name: str) -> State:
    """Job 1 in the state of this name, reached by events."""
    state = State([])
    state.apply(Submitted(job()))
    steps: dict[str, list[Event]] = {
        "waiting": [],
        "starting": events(1, 1)[:1],
        "running": [events(1, 1)[0], events(1, 1)[2]],
        "held": [Held(1, 6.0)],
        "caught": [events(1, 1)[0], Held(1, 6.0)],
        "stopped": [events(1, 1)[0], events(1, 1)[2], Held(1, 6.0)],
        "gone": events(1, 1)[1:2],
    }
    for event in steps[name]:
        state.apply(event)
    assert name_of(state.get(1)) == name
    return state


@pytest.mark.parametrize("name", NAMES)
def test_an_event_that_does_not_fit_is_our_bug_and_changes_nothing(name: str) -> None:
    for event in events(1, 1):
        state = state_with(name)
        before = state.jobs()
        if name in FITTING[type(event)]:
            assert state.apply(event) is not None
            assert state.jobs() != before
        else:
            with pytest.raises(InternalError):
                state.apply(event)
            assert state.jobs() == before


@pytest.mark.parametrize("name", NAMES[:-1])
@pytest.mark.parametrize("attempt", [0, 2])
def test_news_of_another_attempt_is_refused(name: str, attempt: int) -> None:
    for event in events(1, attempt):
        if hasattr(event, "attempt"):
            state = state_with(name)
            before = state.jobs()
            with pytest.raises(InternalError, match="attempt"):
                state.apply(event)
            assert state.jobs() == before


def test_a_job_goes_from_submitted_to_finished_and_is_then_forgotten() -> None:
    state = State([])
    granted, _, started, *_ = events(1, 1)
    state.apply(Submitted(job()))
    assert state.waiting() == [job()]
    assert state.apply(granted) == job(state=Starting(2.0, lease(), 1.0, 5.0))
    running = Running(3.0, lease(), 1.0, 5.0, KEEPER, WORKER, "warm")
    assert state.apply(started) == job(state=running)
    assert state.holding() == [job(state=running)]
    ended = state.apply(AttemptEnded(1, 1, 4.0, DONE))
    assert ended == job(state=Finished(4.0, DONE, lease(), "warm"))
    assert state.jobs() == []
    assert 1 not in state


def test_a_job_that_is_tried_again_waits_for_a_larger_lease_as_its_next_attempt() -> None:
    state = state_with("running")
    again = state.apply(AttemptEnded(1, 1, 4.0, OOM, LARGER, 9.0))
    assert again is not None
    assert again.state == Waiting(4.0, 9.0, 0.0, "ran out of memory")
    assert (again.attempt_id, again.least, again.failures) == ("1.2", 768 * MiB, 0)
    assert again.past == (Past(1, 4.0, OOM, lease()),)


def test_a_job_that_is_tried_again_while_it_is_paused_stays_paused() -> None:
    state = state_with("stopped")
    lost = Outcome("lost", 255)
    again = state.apply(AttemptEnded(1, 1, 4.0, lost, Again("lost", forgiven=True), 9.0))
    assert again is not None
    assert again.state == Paused(6.0, Waiting(4.0, 9.0, 0.0, "lost"))
    assert again.attempt == 2
    assert (state.waiting(), state.holding(), state.paused()) == ([], [], [again])


def test_who_lets_a_job_go_on_does_not_wait_for_its_delay() -> None:
    state = state_with("running")
    state.apply(AttemptEnded(1, 1, 4.0, OOM, Again("exit code 3", delay=600.0), 9.0))
    state.apply(Held(1, 10.0))
    released = state.apply(Released(1, 11.0, 12.0))
    assert released is not None
    assert released.state == Waiting(4.0, 12.0, 0.0, "exit code 3")


def test_a_job_that_failed_of_itself_is_remembered_to_have_and_put_off() -> None:
    state = state_with("running")
    outcome = Outcome("exited", 3)
    again = state.apply(AttemptEnded(1, 1, 4.0, outcome, Again("exit code 3", delay=5.0), 9.0))
    assert again is not None
    assert again.state == Waiting(4.0, 9.0, 5.0, "exit code 3")
    assert (again.attempt, again.failures) == (2, 1)


def test_a_paused_job_keeps_what_it_holds_and_goes_on_as_before() -> None:
    state = state_with("stopped")
    assert [one.lease for one in state.holding()] == [lease()]
    assert state.waiting() == []
    state.apply(Released(1, 7.0, 9.0))
    assert name_of(state[1]) == "running"
    state = state_with("caught")
    state.apply(Released(1, 7.0, 9.0))
    assert state[1] == state_with("starting")[1]
    state = state_with("held")
    assert (state.holding(), state.waiting()) == ([], [])
    state.apply(Released(1, 7.0, 9.0))
    assert state.waiting() == [job(state=Waiting(1.0, 9.0))]


def test_a_finished_job_can_be_opened_again_and_a_live_one_cannot() -> None:
    state = state_with("gone")
    state.apply(Reopened(job(attempt=2)))
    assert state.waiting() == [job(attempt=2)]
    with pytest.raises(InternalError, match="live already"):
        state.apply(Reopened(job(attempt=3)))


def test_a_job_is_found_by_its_token_as_long_as_it_lives() -> None:
    state = state_with("waiting")
    assert state.with_token("token-1") == job()
    assert state.with_token("token-2") is None
    state.apply(Withdrawn(1, 2.0, DONE))
    assert state.with_token("token-1") is None


def test_a_job_that_never_ran_waits_again_as_its_next_attempt() -> None:
    for name in ("starting", "running"):
        state = state_with(name)
        again = replace(job(state=Waiting(3.0, 8.0), attempt=2), false_starts=1)
        assert state.apply(NeverRan(1, 1, 3.0, 8.0)) == again
    state = state_with("stopped")
    paused = Paused(3.0, Waiting(3.0, 8.0))
    assert state.apply(NeverRan(1, 1, 3.0, 8.0)) == replace(again, state=paused)


def test_what_a_failed_attempt_has_taught_outlives_attempts_that_never_ran() -> None:
    state = state_with("running")
    state.apply(AttemptEnded(1, 1, 4.0, OOM, LARGER))
    state.apply(Granted(1, 5.0, 8.0, lease(ceiling=768 * MiB)))
    state.apply(NeverRan(1, 2, 6.0))
    assert (state[1].state, state[1].attempt) == (Waiting(6.0), 3)
    assert state[1].least == 768 * MiB


def test_a_job_cannot_be_submitted_over_a_live_one() -> None:
    for name in ("waiting", "starting", "running"):
        state = state_with(name)
        before = state.jobs()
        with pytest.raises(InternalError, match="live already"):
            state.apply(Submitted(job(1, args=(b"--other",))))
        assert state.jobs() == before


def test_nothing_is_undone_of_a_job_that_is_not_live() -> None:
    for name, number in (("gone", 1), ("waiting", 2)):
        state = state_with(name)
        before = state.jobs()
        with pytest.raises(InternalError, match="not live"):
            state.apply(Undone(number, None))
        assert state.jobs() == before


def test_a_job_whose_end_is_undone_is_live_again() -> None:
    state = state_with("waiting")
    before = state[1]
    state.apply(Withdrawn(1, 2.0, Outcome("cancelled", 143)))
    assert 1 not in state
    state.apply(Undone(1, before))
    assert state.waiting() == [before]
    assert state.with_token(before.token) == before


def test_the_first_reason_to_stop_is_the_one_that_is_kept() -> None:
    state = state_with("running")
    state.apply(StopAsked(1, "its client ended"))
    state.apply(StopAsked(1, "`sublet down --stop`"))
    running = state[1].state
    assert isinstance(running, Running)
    assert running.stopping == "its client ended"


def test_what_was_asked_of_a_job_that_is_started_holds_when_it_runs() -> None:
    """And when it never ran: then it waits, paused."""
    state = state_with("caught")
    state.apply(StopAsked(1, "cancelled"))
    state.apply(WorkerStarted(1, 1, 3.0, KEEPER, WORKER, "warm"))
    assert name_of(state[1]) == "stopped"
    assert isinstance(state[1].holds, Running)
    assert state[1].holds.stopping == "cancelled"
    state = state_with("caught")
    state.apply(NeverRan(1, 1, 3.0))
    assert name_of(state[1]) == "held"


def test_a_clock_that_was_set_back_gives_no_negative_wait() -> None:
    state = State([job(state=Waiting(100.0))])
    state.apply(Granted(1, 50.0, 5.0, lease()))
    starting = state[1].state
    assert isinstance(starting, Starting)
    assert starting.waited == 0.0


def test_jobs_are_in_the_order_they_came_whatever_happens_to_them() -> None:
    state = State([job(1), job(2), job(3)])
    state.apply(Granted(2, 2.0, 5.0, lease()))
    state.apply(Granted(1, 2.0, 5.0, lease()))
    state.apply(NeverRan(1, 1, 3.0))
    assert [one.id for one in state.jobs()] == [1, 2, 3]
    assert [one.id for one in state.waiting()] == [1, 3]
    assert [one.id for one in state.holding()] == [2]


class AnyHistory(RuleBasedStateMachine):
    """Events in any order, fitting and not, against what was true before each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State([])
        self.submitted = 0
        self.attempts: dict[int, int] = {}
        self.least: dict[int, int] = {}
        self.decision: tuple[list[Job], Undone] | None = None

    @rule()
    def submit(self) -> None:
        before = self.state.jobs()
        self.submitted += 1
        new = job(self.submitted)
        assert self.state.apply(Submitted(new)) == new
        assert self.state.jobs() == [*before, new]
        self.decision = (before, Undone(new.id, None))

    @precondition(lambda self: self.state.jobs())
    @rule(data=st.data())
    def submit_again(self, data: st.DataObject) -> None:
        before = self.state.jobs()
        with pytest.raises(InternalError):
            self.state.apply(Submitted(data.draw(st.sampled_from(before))))
        assert self.state.jobs() == before

    @precondition(lambda self: self.submitted)
    @rule(data=st.data(), kind=st.integers(0, 8), late=st.integers(0, 3))
    def event(self, data: st.DataObject, kind: int, late: int) -> None:
        # One number above all that were given: a job that has never been.
        number = data.draw(st.integers(1, self.submitted + 1))
        before = self.state.jobs()
        known = self.state.get(number)
        current = known.attempt if known is not None else 1
        attempt = current - (late == 3)
        event = events(number, attempt)[kind]
        stale = getattr(event, "attempt", current) != current
        if stale or name_of(known) not in FITTING[type(event)]:
            with pytest.raises(InternalError):
                self.state.apply(event)
            assert self.state.jobs() == before
            return
        after = self.state.apply(event)
        assert after is not None
        others = [one for one in before if one.id != number]
        assert [one for one in self.state.jobs() if one.id != number] == others
        finished = isinstance(after.state, Finished)
        assert self.state.get(number) == (None if finished else after)
        self.decision = (before, Undone(number, known)) if isinstance(event, Granted) else None

    @precondition(lambda self: self.decision is not None)
    @rule()
    def undo(self) -> None:
        assert self.decision is not None
        before, undone = self.decision
        self.decision = None
        assert self.state.apply(undone) == undone.before
        assert self.state.jobs() == before

    @invariant()
    def a_lease_is_held_exactly_while_starting_and_running_paused_or_not(self) -> None:
        holding = ("starting", "running", "caught", "stopped")
        jobs = self.state.jobs()
        assert [one for one in jobs if name_of(one) in holding] == self.state.holding()
        for one in jobs:
            assert (one.lease is not None) == (name_of(one) in holding)

    @invariant()
    def each_job_waits_or_holds_or_is_held_and_none_is_finished(self) -> None:
        held = [one for one in self.state.jobs() if name_of(one) == "held"]
        all_kinds = self.state.waiting() + self.state.holding() + held
        assert sorted(one.id for one in all_kinds) == [one.id for one in self.state.jobs()]

    @invariant()
    def attempts_and_what_they_need_only_grow(self) -> None:
        for one in self.state.jobs():
            assert one.attempt >= self.attempts.get(one.id, 1)
            assert one.least >= self.least.get(one.id, 0)
            self.attempts[one.id] = one.attempt
            self.least[one.id] = one.least


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=50, stateful_step_count=40)
