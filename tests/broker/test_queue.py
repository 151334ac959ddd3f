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


class QueueHarness:
    """A queue and all it stands on, without processes or sockets."""

    def __init__(self, path: Path) -> None:
        self.now = 1000.0
        self.devices = {"cpu": CPU}
        self.work = UnitOfWork(Ledger.open(path))
        self.state = self.work.state
        self.dependencies = Dependencies(self.work)
        self.queue = self._queue(self.dependencies)
        self.next = 1

    def fresh(self) -> Queue:
        """A queue that has seen nothing yet."""
        return self._queue(Dependencies(self.work))

    def _queue(self, dependencies: Dependencies) -> Queue:
        self.estimator = SizeEstimator(
            self.work.ledger, self.devices, lambda job: 0, lambda room: False
        )
        return Queue(self.state, self.estimator, dependencies, lambda *_: "", lambda: self.now)

    def capacities(self) -> tuple[Capacity, ...]:
        known = {name: facts(one) for name, one in self.devices.items()}
        return capacities(known, self.state.holding(), {}, ())

    def submit(
        self,
        count: int = 1,
        at_once: int = 0,
        after: tuple[int, ...] = (),
        after_ok: tuple[int, ...] = (),
        on: str = "cpu",
    ) -> list[Job]:
        made = []
        for index in range(count):
            one = job(self.next + index)
            task = Task(self.next, index, at_once) if at_once else None
            spec = msgspec.structs.replace(
                one.spec,
                memory=Exactly(64 * MiB),
                cold="a test",
                device=on,
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

    def end(self, number: int, outcome: Outcome = WELL, again: Again | None = None) -> None:
        attempt = self.state[number].attempt
        self.happened(AttemptEnded(number, attempt, self.now, outcome, again, self.now))

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
                outcome = Outcome("dependency", 143, message=self.dependencies.hopeless(one))
                self.happened(Withdrawn(one.id, self.now, outcome))

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
def harness(tmp_path: Path) -> QueueHarness:
    return QueueHarness(tmp_path / "ledger.sqlite")


def test_a_job_waits_for_those_it_comes_after_however_they_end(harness: QueueHarness) -> None:
    harness.submit()
    harness.submit(after=(1,))
    assert harness.held() == {1: "", 2: "after #1"}
    harness.run(1)
    harness.end(1, BADLY)
    assert harness.held() == {2: ""}


@pytest.mark.parametrize("written", [True, False], ids=["written", "not yet written"])
def test_a_job_that_needs_another_to_end_well_never_starts_after_its_failure(
    harness: QueueHarness, written: bool
) -> None:
    """Also when the failure is not on disk yet: plans are made before it is."""
    harness.submit()
    harness.submit(after_ok=(1,))
    harness.submit(after_ok=(2,))
    harness.settle()
    harness.work.commit()
    harness.run(1)
    harness.end(1, BADLY)
    if written:
        harness.work.commit()
    assert harness.held() == {}
    assert harness.outcome(2).message == "#1 did not succeed (exit code 3)"
    assert harness.outcome(3).message == "#2 did not succeed (not started)"


def test_many_whom_a_job_waits_for_are_counted_not_listed(harness: QueueHarness) -> None:
    harness.submit(5)
    harness.submit(after=(1, 2, 3, 4, 5))
    assert harness.held()[6] == "after #1, #2, #3 and 2 more"


def test_an_array_starts_so_many_at_once_in_order(harness: QueueHarness) -> None:
    harness.submit(4, at_once=2)
    assert harness.ready() == {1, 2}
    harness.run(2)
    assert harness.ready() == {1}
    harness.run(1)
    assert harness.ready() == set()
    assert harness.held()[3] == "array limit: 2 at a time"
    harness.end(2)
    assert harness.ready() == {3}


def test_the_bound_of_an_array_holds_when_one_of_it_is_done_again(harness: QueueHarness) -> None:
    """Also for a broker that starts now and sees them by their numbers."""
    harness.submit(2, at_once=1)
    harness.run(1)
    harness.end(1)
    harness.settle()
    done = harness.work.find(1)
    assert done is not None
    harness.run(2)
    harness.reopen(done)
    assert harness.ready() == set()
    later = harness.fresh()
    later.update(harness.capacities())
    assert [one.held for one in later.wait_queue] == ["array limit: 1 at a time"]
    harness.end(2)
    assert harness.ready() == {1}


def test_one_that_is_paused_before_it_ran_does_not_stop_its_array(harness: QueueHarness) -> None:
    harness.submit(3, at_once=1)
    harness.happened(Held(1, harness.now))
    assert harness.ready() == {2}
    harness.happened(Released(1, harness.now, harness.now))
    assert harness.ready() == {1}


def test_who_is_put_off_after_a_failure_comes_back_when_the_delay_is_over(
    harness: QueueHarness,
) -> None:
    harness.submit()
    harness.run(1)
    harness.end(1, BADLY, Again("exit code 3, retry 1 of 3 in 5.0 s", delay=5.0))
    assert harness.held() == {1: "exit code 3, retry 1 of 3 in 5.0 s"}
    assert harness.queue.delay(harness.state[1]) == 5.0
    harness.now += 5.0
    harness.queue.touch(1)
    harness.queue.update(harness.capacities())
    assert harness.held() == {1: ""}


def test_a_delay_of_an_earlier_boot_is_over(harness: QueueHarness) -> None:
    harness.submit()
    harness.run(1)
    harness.end(1, BADLY, Again("exit code 3", delay=5.0))
    harness.now = 3.0
    assert harness.held() == {1: ""}
    (one,) = harness.queue.wait_queue
    assert one.since == 3.0
    harness.now = 2000.0
    harness.queue.touch(1)
    harness.queue.update(harness.capacities())
    (one,) = harness.queue.wait_queue
    assert one.since == 3.0


def test_those_who_wait_for_a_job_wait_again_when_it_is_done_again(harness: QueueHarness) -> None:
    harness.submit()
    harness.submit(after_ok=(1,))
    harness.run(1)
    harness.end(1)
    assert harness.ready() == {2}
    done = harness.work.find(1)
    assert done is not None
    harness.reopen(done)
    assert harness.held() == {1: "", 2: "after #1"}


def test_what_is_learned_of_a_program_reaches_all_who_wait_a_slice_at_a_time(
    harness: QueueHarness,
) -> None:
    """In order: those who may start first are sized first."""
    harness.submit(250)
    harness.settle()
    while harness.queue.behind:
        harness.queue.update(harness.capacities())
    before = by_job(harness.queue)
    outcome = Outcome("exited", 0, peak=MiB, system_peak=40 * MiB)
    harness.work.ledger.measurements.remember(harness.state[1], "cpu", GiB, outcome, "cold", 1.0)
    harness.queue.revise(harness.estimator.measured(harness.state[1]))
    harness.queue.update(harness.capacities())
    changed = [one.job for one in harness.queue.wait_queue if one != before[one.job]]
    assert changed == list(range(1, len(changed) + 1))
    assert 0 < len(changed) < 250
    while harness.queue.behind:
        harness.queue.update(harness.capacities())
    fresh = harness.fresh()
    fresh.update(harness.capacities())
    assert by_job(harness.queue) == by_job(fresh)
    assert all(one != before[one.job] for one in harness.queue.wait_queue)


def test_who_waits_for_a_device_that_is_away_may_start_when_it_is_back(
    harness: QueueHarness,
) -> None:
    """A broker that is started meanwhile does not know the device, and nothing else changes."""
    harness.submit(on="gpu1")
    assert harness.held() == {1: "there is no device 'gpu1' any more"}
    harness.devices["gpu1"] = device("gpu1", 8 * GiB)
    harness.queue.update(harness.capacities())
    assert harness.ready() == {1}


@pytest.mark.parametrize("number", [2, 7, 0, -1])
def test_a_dependency_on_nobody_is_refused(harness: QueueHarness, number: int) -> None:
    """Among them the job itself: its number is not given yet."""
    harness.submit()
    with pytest.raises(BadRequest, match=f"no job {number} to wait for"):
        harness.submit(after=(number,))
    assert len(harness.state) == 1


def test_a_dependency_that_has_failed_already_is_refused(harness: QueueHarness) -> None:
    harness.submit()
    harness.run(1)
    harness.end(1, BADLY)
    with pytest.raises(BadRequest, match="would wait for ever") as refusal:
        harness.submit(after_ok=(1,))
    assert "sublet retry 1" in refusal.value.hint
    harness.submit(after=(1,))
    spec = msgspec.structs.replace(job().spec, after_ok=(1,))
    harness.dependencies.check(spec, 9, revived=(1,))


class QueueMachine(RuleBasedStateMachine):
    """Whatever happens, in whatever order, the line is what a look at everything gives."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.harness = QueueHarness(Path(self.directory) / "ledger.sqlite")
        self.finished: dict[int, Job] = {}

    def teardown(self) -> None:
        self.harness.work.ledger.close()
        shutil.rmtree(self.directory)

    def live(self, *kinds: type) -> list[Job]:
        return [one for one in self.harness.state.jobs() if isinstance(one.state, kinds)]

    @rule(
        count=st.integers(1, 4),
        at_once=st.integers(0, 3),
        data=st.data(),
        ok=st.booleans(),
    )
    def submit(self, count: int, at_once: int, data: st.DataObject, ok: bool) -> None:
        known = sorted({*self.finished, *(one.id for one in self.harness.state.jobs())})
        names = tuple(data.draw(st.sets(st.sampled_from(known), max_size=2))) if known else ()
        try:
            self.harness.submit(count, at_once, () if ok else names, names if ok else ())
        except BadRequest:
            assert ok

    @precondition(lambda self: self.harness.queue.wait_queue)
    @rule(data=st.data())
    def grant(self, data: st.DataObject) -> None:
        ready = sorted(self.harness.ready())
        if ready:
            number = data.draw(st.sampled_from(ready))
            one = self.harness.state[number]
            self.harness.work.decided(one, Granted(number, 1.0, self.harness.now, lease()))

    @precondition(lambda self: self.live(Starting))
    @rule(data=st.data(), ran=st.booleans())
    def start(self, data: st.DataObject, ran: bool) -> None:
        one = data.draw(st.sampled_from(self.live(Starting)))
        if ran:
            event: Event = WorkerStarted(one.id, one.attempt, 1.0, KEEPER, WORKER, "warm")
        else:
            event = NeverRan(one.id, one.attempt, 1.0, self.harness.now)
        self.harness.happened(event)

    @precondition(lambda self: self.harness.state.holding())
    @rule(
        data=st.data(),
        outcome=st.sampled_from([WELL, BADLY]),
        again=st.sampled_from([None, Again("once more"), Again("later", delay=5.0)]),
    )
    def end(self, data: st.DataObject, outcome: Outcome, again: Again | None) -> None:
        one = data.draw(st.sampled_from(self.harness.state.holding()))
        self.harness.end(one.id, outcome, again)

    @rule(data=st.data())
    def pause_or_resume(self, data: st.DataObject) -> None:
        jobs = [one for one in self.harness.state.jobs() if not isinstance(one.state, Starting)]
        if jobs:
            one = data.draw(st.sampled_from(jobs))
            if isinstance(one.state, Paused):
                self.harness.happened(Released(one.id, 1.0, self.harness.now))
            else:
                self.harness.happened(Held(one.id, 1.0))

    @precondition(lambda self: self.live(Waiting))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.live(Waiting)))
        self.harness.happened(Withdrawn(one.id, 1.0, Outcome("cancelled", 143)))

    @precondition(lambda self: self.finished)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.finished)))
        one = self.finished[number]
        try:
            self.harness.dependencies.check(one.spec, one.id)
        except BadRequest:
            return
        del self.finished[number]
        self.harness.reopen(one)

    @rule(seconds=st.sampled_from([0.5, 3.0, 10.0]))
    def pass_time(self, seconds: float) -> None:
        self.harness.now += seconds
        for one in self.live(Waiting):  # As the broker's timers do.
            self.harness.queue.touch(one.id)
        self.harness.queue.update(self.harness.capacities())

    @rule()
    def write(self) -> None:
        assert isinstance(self.harness.work.commit(), Committed)

    @invariant()
    def the_line_is_what_a_look_at_everything_gives(self) -> None:
        before = {one.id for one in self.harness.state.jobs()}
        self.harness.settle()
        fresh = self.harness.fresh()
        assert fresh.update(self.harness.capacities()) == []
        assert by_job(self.harness.queue) == by_job(fresh)
        for number in range(1, self.harness.next):
            one = self.harness.work.find(number)
            assert one is not None, before
            if isinstance(one.state, Finished):
                self.finished[number] = one
        for one in self.live(Waiting):
            assert one.id in self.harness.queue.wait_queue

    @invariant()
    def no_array_runs_more_than_it_may(self) -> None:
        running: dict[int, int] = {}
        bounds: dict[int, int] = {}
        for one in self.harness.state.holding():
            if one.spec.task is not None and one.spec.task.at_once:
                running[one.spec.task.array] = running.get(one.spec.task.array, 0) + 1
                bounds[one.spec.task.array] = one.spec.task.at_once
        assert all(count <= bounds[array] for array, count in running.items())


def by_job(queue: Queue) -> dict[int, Candidate]:
    return {one.job: one for one in queue.wait_queue}


QueueMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLine = pytest.mark.slow(QueueMachine.TestCase)
