"""The line is kept job by job, and is what a look at everything would give."""

import shutil
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sublet.broker.dependencies import Dependencies
from sublet.broker.device_usage import capacities
from sublet.broker.events import (
    AttemptEnded,
    Event,
    Granted,
    Held,
    NeverRan,
    Released,
    Reopened,
    Submitted,
    Withdrawn,
    WorkerStarted,
)
from sublet.broker.ledger import Ledger
from sublet.broker.queue import Queue
from sublet.broker.size_estimates import SizeEstimator
from sublet.broker.unit_of_work import Committed, UnitOfWork
from sublet.domain.job import Again, Finished, Job, Outcome, Paused, Starting, Task, Waiting
from sublet.domain.memory import Exactly
from sublet.errors import BadRequest
from sublet.policy.capacity import Capacity
from sublet.policy.wait_queue import Candidate
from sublet.units import GiB, MiB
from support.jobs import KEEPER, WORKER, device, facts, job, lease

CPU = device("cpu", 64 * GiB)
WELL = Outcome("exited", 0)
BADLY = Outcome("exited", 3)


class Desk:
    """A queue and all it stands on, without processes or sockets."""

    def __init__(self, path: Path) -> None:
        self.now = 1000.0
        self.work = UnitOfWork(Ledger.open(path))
        self.state = self.work.state
        self.dependencies = Dependencies(self.work)
        self.queue = self._queue(self.dependencies)
        self.next = 1

    def fresh(self) -> Queue:
        """A queue that has seen nothing yet."""
        return self._queue(Dependencies(self.work))

    def _queue(self, dependencies: Dependencies) -> Queue:
        self.estimator = SizeEstimator(self.work.ledger, {"cpu": CPU})
        return Queue(self.state, self.estimator, dependencies, lambda one: "", lambda: self.now)

    def capacities(self) -> tuple[Capacity, ...]:
        return capacities({"cpu": facts(CPU)}, self.state.holding(), {}, 0)

    def submit(
        self,
        count: int = 1,
        at_once: int = 0,
        after: tuple[int, ...] = (),
        after_ok: tuple[int, ...] = (),
    ) -> list[Job]:
        made = []
        for index in range(count):
            one = job(self.next + index)
            task = Task(self.next, index, at_once) if at_once else None
            spec = msgspec.structs.replace(
                one.spec,
                memory=Exactly(64 * MiB),
                cold="a test",
                client=None,
                after=after,
                after_ok=after_ok,
                task=task,
            )
            waiting = Waiting(self.now, self.now)
            made.append(msgspec.structs.replace(one, spec=spec, state=waiting))
        self.dependencies.check(made[0].spec, made[0].id)
        for one in made:
            self.work.decided(None, Submitted(one))
        self.next += count
        return made

    def happened(self, event: Event) -> Job:
        return self.work.happened(event)

    def run(self, number: int) -> None:
        """Grant and start a job."""
        one = self.state[number]
        self.work.decided(one, Granted(number, self.now, self.now, lease()))
        self.happened(WorkerStarted(number, one.attempt, self.now, KEEPER, WORKER, "warm"))

    def end(self, number: int, told: Outcome = WELL, again: Again | None = None) -> None:
        attempt = self.state[number].attempt
        self.happened(AttemptEnded(number, attempt, self.now, told, again, self.now))

    def reopen(self, one: Job) -> None:
        self.dependencies.forget(one.id)
        waiting = Waiting(self.now, self.now)
        again = msgspec.structs.replace(one, state=waiting, attempt=one.attempt + 1)
        self.happened(Reopened(again))

    def settle(self) -> None:
        """As the broker does before each plan."""
        while touched := self.work.take_touched():
            for number in touched:
                self.queue.touch(number)
            for one in self.queue.update(self.capacities()):
                told = Outcome("dependency", 143, message=self.dependencies.hopeless(one))
                self.happened(Withdrawn(one.id, self.now, told))

    def held(self) -> dict[int, str]:
        """Why each of those who wait is put off; empty for who is not."""
        self.settle()
        return {one.job: one.held for one in self.queue.wait_queue}

    def ready(self) -> set[int]:
        return {number for number, why in self.held().items() if not why}

    def outcome(self, number: int) -> Outcome:
        one = self.work.find(number)
        assert one is not None
        assert isinstance(one.state, Finished)
        return one.state.outcome


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "ledger.sqlite")


def test_a_job_waits_for_those_it_comes_after_however_they_end(desk: Desk) -> None:
    desk.submit()
    desk.submit(after=(1,))
    assert desk.held() == {1: "", 2: "after #1"}
    desk.run(1)
    desk.end(1, BADLY)
    assert desk.held() == {2: ""}


@pytest.mark.parametrize("written", [True, False], ids=["written", "not yet written"])
def test_a_job_that_needs_another_to_end_well_never_starts_after_its_failure(
    desk: Desk, written: bool
) -> None:
    """Also when the failure is not on disk yet: plans are made before it is."""
    desk.submit()
    desk.submit(after_ok=(1,))
    desk.submit(after_ok=(2,))
    desk.settle()
    desk.work.commit()
    desk.run(1)
    desk.end(1, BADLY)
    if written:
        desk.work.commit()
    assert desk.held() == {}
    assert desk.outcome(2).message == "#1 has not ended well (exit code 3)"
    assert desk.outcome(3).message == "#2 has not ended well (not started)"


def test_many_whom_a_job_waits_for_are_counted_not_listed(desk: Desk) -> None:
    desk.submit(5)
    desk.submit(after=(1, 2, 3, 4, 5))
    assert desk.held()[6] == "after #1, #2, #3 and 2 more"


def test_an_array_starts_so_many_at_once_in_order(desk: Desk) -> None:
    desk.submit(4, at_once=2)
    assert desk.ready() == {1, 2}
    desk.run(2)
    assert desk.ready() == {1}
    desk.run(1)
    assert desk.ready() == set()
    assert desk.held()[3] == "2 of its array run at a time"
    desk.end(2)
    assert desk.ready() == {3}


def test_the_bound_of_an_array_holds_when_one_of_it_is_done_again(desk: Desk) -> None:
    """Also for a broker that starts now and sees them by their numbers."""
    desk.submit(2, at_once=1)
    desk.run(1)
    desk.end(1)
    desk.settle()
    done = desk.work.find(1)
    assert done is not None
    desk.run(2)
    desk.reopen(done)
    assert desk.ready() == set()
    later = desk.fresh()
    later.update(desk.capacities())
    assert [one.held for one in later.wait_queue] == ["1 of its array run at a time"]
    desk.end(2)
    assert desk.ready() == {1}


def test_one_that_is_paused_before_it_ran_does_not_stop_its_array(desk: Desk) -> None:
    desk.submit(3, at_once=1)
    desk.happened(Held(1, desk.now))
    assert desk.ready() == {2}
    desk.happened(Released(1, desk.now, desk.now))
    assert desk.ready() == {1}


def test_who_is_put_off_after_a_failure_comes_back_when_the_delay_is_over(desk: Desk) -> None:
    desk.submit()
    desk.run(1)
    desk.end(1, BADLY, Again("exit code 3, retry 1 of 3 in 5.0 s", delay=5.0))
    assert desk.held() == {1: "exit code 3, retry 1 of 3 in 5.0 s"}
    assert desk.queue.delay(desk.state[1]) == 5.0
    desk.now += 5.0
    desk.queue.touch(1)
    desk.queue.update(desk.capacities())
    assert desk.held() == {1: ""}


def test_a_delay_of_an_earlier_boot_is_over(desk: Desk) -> None:
    desk.submit()
    desk.run(1)
    desk.end(1, BADLY, Again("exit code 3", delay=5.0))
    desk.now = 3.0
    assert desk.held() == {1: ""}
    (one,) = desk.queue.wait_queue
    assert one.since == 3.0
    desk.now = 2000.0
    desk.queue.touch(1)
    desk.queue.update(desk.capacities())
    (one,) = desk.queue.wait_queue
    assert one.since == 3.0


def test_those_who_wait_for_a_job_wait_again_when_it_is_done_again(desk: Desk) -> None:
    desk.submit()
    desk.submit(after_ok=(1,))
    desk.run(1)
    desk.end(1)
    assert desk.ready() == {2}
    done = desk.work.find(1)
    assert done is not None
    desk.reopen(done)
    assert desk.held() == {1: "", 2: "after #1"}


def test_what_is_learned_of_a_program_reaches_all_who_wait_a_slice_at_a_time(
    desk: Desk,
) -> None:
    """In order: those who may start first are sized first."""
    desk.submit(250)
    desk.settle()
    while desk.queue.behind:
        desk.queue.update(desk.capacities())
    before = by_job(desk.queue)
    told = Outcome("exited", 0, peak=MiB, system_peak=40 * MiB)
    desk.work.ledger.measurements.remember(desk.state[1], "cpu", GiB, told, "cold", 1.0)
    desk.queue.revise(desk.estimator.measured(desk.state[1]))
    desk.queue.update(desk.capacities())
    changed = [one.job for one in desk.queue.wait_queue if one != before[one.job]]
    assert changed == list(range(1, len(changed) + 1))
    assert 0 < len(changed) < 250
    while desk.queue.behind:
        desk.queue.update(desk.capacities())
    fresh = desk.fresh()
    fresh.update(desk.capacities())
    assert by_job(desk.queue) == by_job(fresh)
    assert all(one != before[one.job] for one in desk.queue.wait_queue)


@pytest.mark.parametrize("number", [2, 7, 0, -1])
def test_a_dependency_on_nobody_is_refused(desk: Desk, number: int) -> None:
    """Among them the job itself: its number is not given yet."""
    desk.submit()
    with pytest.raises(BadRequest, match=f"no job {number} to wait for"):
        desk.submit(after=(number,))
    assert len(desk.state) == 1


def test_a_dependency_that_has_failed_already_is_refused(desk: Desk) -> None:
    desk.submit()
    desk.run(1)
    desk.end(1, BADLY)
    with pytest.raises(BadRequest, match="would wait for ever") as refusal:
        desk.submit(after_ok=(1,))
    assert "sublet retry 1" in refusal.value.hint
    desk.submit(after=(1,))
    spec = msgspec.structs.replace(job().spec, after_ok=(1,))
    desk.dependencies.check(spec, 9, revived=(1,))


class Line(RuleBasedStateMachine):
    """Whatever happens, in whatever order, the line is what a look at everything gives."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.desk = Desk(Path(self.directory) / "ledger.sqlite")
        self.finished: dict[int, Job] = {}

    def teardown(self) -> None:
        self.desk.work.ledger.close()
        shutil.rmtree(self.directory)

    def live(self, *kinds: type) -> list[Job]:
        return [one for one in self.desk.state.jobs() if isinstance(one.state, kinds)]

    @rule(
        count=st.integers(1, 4),
        at_once=st.integers(0, 3),
        data=st.data(),
        ok=st.booleans(),
    )
    def submit(self, count: int, at_once: int, data: st.DataObject, ok: bool) -> None:
        known = sorted({*self.finished, *(one.id for one in self.desk.state.jobs())})
        names = tuple(data.draw(st.sets(st.sampled_from(known), max_size=2))) if known else ()
        try:
            self.desk.submit(count, at_once, () if ok else names, names if ok else ())
        except BadRequest:
            assert ok

    @precondition(lambda self: self.desk.queue.wait_queue)
    @rule(data=st.data())
    def grant(self, data: st.DataObject) -> None:
        ready = sorted(self.desk.ready())
        if ready:
            number = data.draw(st.sampled_from(ready))
            one = self.desk.state[number]
            self.desk.work.decided(one, Granted(number, 1.0, self.desk.now, lease()))

    @precondition(lambda self: self.live(Starting))
    @rule(data=st.data(), ran=st.booleans())
    def start(self, data: st.DataObject, ran: bool) -> None:
        one = data.draw(st.sampled_from(self.live(Starting)))
        if ran:
            event: Event = WorkerStarted(one.id, one.attempt, 1.0, KEEPER, WORKER, "warm")
        else:
            event = NeverRan(one.id, one.attempt, 1.0, self.desk.now)
        self.desk.happened(event)

    @precondition(lambda self: self.desk.state.holding())
    @rule(
        data=st.data(),
        told=st.sampled_from([WELL, BADLY]),
        again=st.sampled_from([None, Again("once more"), Again("later", delay=5.0)]),
    )
    def end(self, data: st.DataObject, told: Outcome, again: Again | None) -> None:
        one = data.draw(st.sampled_from(self.desk.state.holding()))
        self.desk.end(one.id, told, again)

    @rule(data=st.data())
    def pause_or_resume(self, data: st.DataObject) -> None:
        jobs = [one for one in self.desk.state.jobs() if not isinstance(one.state, Starting)]
        if jobs:
            one = data.draw(st.sampled_from(jobs))
            if isinstance(one.state, Paused):
                self.desk.happened(Released(one.id, 1.0, self.desk.now))
            else:
                self.desk.happened(Held(one.id, 1.0))

    @precondition(lambda self: self.live(Waiting))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.live(Waiting)))
        self.desk.happened(Withdrawn(one.id, 1.0, Outcome("cancelled", 143)))

    @precondition(lambda self: self.finished)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.finished)))
        one = self.finished[number]
        try:
            self.desk.dependencies.check(one.spec, one.id)
        except BadRequest:
            return
        del self.finished[number]
        self.desk.reopen(one)

    @rule(seconds=st.sampled_from([0.5, 3.0, 10.0]))
    def pass_time(self, seconds: float) -> None:
        self.desk.now += seconds
        for one in self.live(Waiting):  # As the broker's timers do.
            self.desk.queue.touch(one.id)
        self.desk.queue.update(self.desk.capacities())

    @rule()
    def write(self) -> None:
        assert isinstance(self.desk.work.commit(), Committed)

    @invariant()
    def the_line_is_what_a_look_at_everything_gives(self) -> None:
        before = {one.id for one in self.desk.state.jobs()}
        self.desk.settle()
        fresh = self.desk.fresh()
        assert fresh.update(self.desk.capacities()) == []
        assert by_job(self.desk.queue) == by_job(fresh)
        for number in range(1, self.desk.next):
            one = self.desk.work.find(number)
            assert one is not None, before
            if isinstance(one.state, Finished):
                self.finished[number] = one
        for one in self.live(Waiting):
            assert one.id in self.desk.queue.wait_queue

    @invariant()
    def no_array_runs_more_than_it_may(self) -> None:
        running: dict[int, int] = {}
        bounds: dict[int, int] = {}
        for one in self.desk.state.holding():
            if one.spec.task is not None and one.spec.task.at_once:
                running[one.spec.task.array] = running.get(one.spec.task.array, 0) + 1
                bounds[one.spec.task.array] = one.spec.task.at_once
        assert all(count <= bounds[array] for array, count in running.items())


def by_job(queue: Queue) -> dict[int, Candidate]:
    return {one.job: one for one in queue.wait_queue}


Line.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLine = pytest.mark.slow(Line.TestCase)
