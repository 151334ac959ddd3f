"""What clients want, put to a real broker that starts nothing: its device is full."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sublet.backends.backend import Ending
from sublet.broker.broker import Broker
from sublet.broker.events import AttemptEnded, Granted, Submitted, Withdrawn, WorkerStarted
from sublet.broker.ledger import Ledger
from sublet.broker.state import State
from sublet.devices import Probe
from sublet.domain.job import (
    POOL_PROGRAM,
    Again,
    Finished,
    Gang,
    Job,
    JobSpec,
    Outcome,
    Paused,
    Process,
    Program,
    Waiting,
)
from sublet.domain.memory import Auto, Exactly, Grow, MemoryAsk, Share
from sublet.home import Home
from sublet.keeper import process_tree
from sublet.reactor import Reactor
from sublet.units import GiB, MiB
from sublet.wire import messages
from support.client import Client
from support.fakes import FakeClock, PuppetBackend
from support.jobs import KEEPER, WORKER, job, lease

DAY = 86400.0


class BrokerHarness:
    """A broker and its desk for clients."""

    def __init__(self, root: Path, clock: FakeClock) -> None:
        home = Home(root)
        home.make()
        self.clock = clock
        self.reactor = Reactor()
        ledger, probe = Ledger.open(home.ledger), Probe.open(2 * GiB)
        self.broker = Broker(self.reactor, home, ledger, probe, clock, PuppetBackend())
        self.requests = self.broker.requests
        self.client = Client(self.reactor)
        self.others: list[Client] = []

    def ask(self, *requests: messages.Request) -> list[messages.Reply]:
        """All of them in one turn of the broker, and what it says."""
        for request in requests:
            self.requests.handle(self.client.connection, request)
        # As after each turn, without following the plan: nothing is to be started here.
        self.broker.planner.plan()
        self.broker.commit()
        return self.client.heard()

    def submit(self, spec: JobSpec | None = None, **options: object) -> tuple[int, ...]:
        request = messages.Submit(spec or wanted(), "a token", **options)  # type: ignore[arg-type]
        (reply,) = self.ask(msgspec.structs.replace(request, token=f"{self.broker.work.next_id}"))
        assert isinstance(reply, messages.Queued), reply
        return reply.jobs

    def start(self, under: messages.Under | None, **fields: object) -> messages.Reply:
        """A program in the foreground of a client that runs under this lease; the answer."""
        client = Client(self.reactor)
        self.others.append(client)
        client.connection.frames.descriptors = [os.dup(0) for _ in range(3)]
        spec = wanted(client=Process(os.getpid(), 1), **fields)
        self.requests.handle(
            client.connection, messages.Run(spec, f"{self.broker.work.next_id}", under)
        )
        self.broker.planner.plan()
        self.broker.commit()
        first, *_ = client.heard()
        return first

    def run(self, number: int, ceiling: int = MiB) -> None:
        """As if it had been granted a lease and had started."""
        self.grant(number, ceiling)
        at, attempt = self.clock.wall(), self.broker.state[number].attempt
        event = WorkerStarted(number, attempt, at, KEEPER, WORKER, "cold: a test")
        self.broker.work.happened(event)

    def grant(self, number: int, ceiling: int = MiB) -> None:
        """As if it had been granted a lease, and its worker had not come yet."""
        at, tick = self.clock.wall(), self.clock.now()
        one = self.broker.state[number]
        self.broker.work.decided(one, Granted(number, at, tick, lease(ceiling=ceiling)))

    def end(self, number: int, outcome: Outcome, again: Again | None = None) -> None:
        event = AttemptEnded(
            number,
            self.broker.state[number].attempt,
            self.clock.wall(),
            outcome,
            again,
            self.clock.now(),
        )
        self.broker.work.happened(event)

    def larger(self, ceiling: int, outcome: Outcome) -> int | None:
        """The ceiling that is suggested for job 1 after this end."""
        estimator, usage = self.broker.estimator, self.broker.usage
        one = self.broker.work.job(1)
        return estimator.suggest(one, lease(ceiling=ceiling), outcome, usage.capacities)

    def state(self, number: int) -> object:
        return self.broker.work.job(number).state

    def close(self) -> None:
        for client in (self.client, *self.others):
            client.close()
        self.broker.close()
        self.reactor.close()


def wanted(**fields: object) -> JobSpec:
    known: dict[str, object] = {"client": None, "memory": Exactly(64 * MiB), "cold": "a test"}
    return msgspec.structs.replace(job().spec, **(known | fields))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def harness(tmp_path: Path, clock: FakeClock) -> Iterator[BrokerHarness]:
    made = BrokerHarness(tmp_path / "home", clock)
    yield made
    made.close()


def refusal(replies: list[messages.Reply]) -> messages.Refused:
    (only,) = replies
    assert isinstance(only, messages.Refused), only
    assert only.kind == "BadRequest", only
    return only


def test_the_same_request_gets_the_same_numbers_though_the_first_has_ended(
    harness: BrokerHarness,
) -> None:
    """An array of which one job is done, and another has changed since."""
    request = messages.Submit(wanted(), "the same", (5, 6, 7), 1)
    (first,) = harness.ask(request)
    assert first == messages.Queued((1, 2, 3))
    harness.run(1)
    harness.end(1, Outcome("exited", 0))
    harness.run(2)
    assert harness.ask(request) == [first]
    assert len(harness.broker.state) == 2


def test_two_who_cancel_the_same_job_both_hear_that_it_is(harness: BrokerHarness) -> None:
    """At once, and later: a request may be put again to the next broker."""
    harness.submit()
    harness.submit()
    harness.run(2)
    replies = harness.ask(*[messages.JobAction("cancel", (1, 2))] * 2)
    assert [type(reply) for reply in replies] == [messages.Done] * 2
    harness.end(2, Outcome("cancelled", 143))
    (done,) = harness.ask(messages.JobAction("cancel", (2, 1)))
    assert done == messages.Done(("#2 train.py: cancelled", "#1 train.py: cancelled"))


def test_a_job_that_has_ended_of_itself_was_not_cancelled(harness: BrokerHarness) -> None:
    harness.submit()
    harness.run(1)
    harness.end(1, Outcome("exited", 0))
    assert (
        "has already finished" in refusal(harness.ask(messages.JobAction("cancel", (1,)))).message
    )


def test_an_act_is_done_to_all_or_to_none(harness: BrokerHarness) -> None:
    harness.submit()
    harness.submit()
    harness.ask(messages.JobAction("pause", (2,)))
    assert "is already paused" in refusal(harness.ask(messages.JobAction("pause", (1, 2)))).message
    assert isinstance(harness.state(1), Waiting)
    assert "no job 9" in refusal(harness.ask(messages.JobAction("cancel", (1, 9)))).message
    assert isinstance(harness.state(1), Waiting)


@pytest.mark.parametrize("verb", ["cancel", "pause"])
def test_those_of_an_array_that_have_finished_do_not_keep_the_others_from_being_ended(
    harness: BrokerHarness, verb: messages.Verb
) -> None:
    for _ in range(3):
        harness.submit()
    harness.run(1)
    harness.end(1, Outcome("exited", 0))
    (done,) = harness.ask(messages.JobAction(verb, (1, 2, 3)))
    assert isinstance(done, messages.Done)
    assert done.said[0] == "#1 train.py: already finished"
    assert not any(isinstance(harness.state(number), Waiting) for number in (2, 3))
    assert harness.state(1).outcome == Outcome("exited", 0)  # type: ignore[attr-defined]


def test_a_job_that_ran_out_of_memory_is_shown_with_what_to_try(harness: BrokerHarness) -> None:
    harness.submit()
    harness.submit(wanted(memory=Exactly(1536 * MiB)))
    for number, ceiling in ((1, 64 * MiB), (2, 3 * GiB)):
        harness.run(number, ceiling)
        harness.end(number, Outcome("lease exceeded", 1, peak=ceiling, message="OOM"))
    (shown,) = harness.ask(messages.AskJobs((1, 2)))
    assert isinstance(shown, messages.Jobs)
    first, second = shown.rows
    assert first.reason == "out of memory: OOM; try --memory 96MiB, or --on-oom grow"
    assert second.reason == "out of memory: OOM; no more can be given: try a smaller batch"


def test_what_was_too_small_again_is_doubled(harness: BrokerHarness) -> None:
    """Each try costs a start, and what led up to the failure."""
    harness.submit(wanted(on_oom="grow"))
    ceiling, tried = 32 * MiB, []
    for _ in range(4):
        harness.run(1, ceiling)
        outcome = Outcome("lease exceeded", 1, peak=ceiling)
        larger = harness.larger(ceiling, outcome)
        assert larger is not None
        harness.end(1, outcome, Again("ran out of memory", 0.0, larger, forgiven=True))
        tried.append(larger // MiB)
        ceiling = larger
    assert tried == [48, 96, 192, 384]


def test_those_that_ended_last_are_shown_and_not_those_that_came_last(
    harness: BrokerHarness,
) -> None:
    """One that ran for long is not gone from sight when it ends."""
    for _ in range(4):
        harness.submit()
    for number in (3, 2, 4, 1):
        harness.run(number)
        harness.end(number, Outcome("exited", 0))
        harness.broker.control.close_job(harness.broker.work.job(number))
    (shown,) = harness.ask(messages.AskJobs(finished=2))
    assert isinstance(shown, messages.Jobs)
    assert [row.id for row in shown.rows] == [4, 1]


def test_calls_of_a_pool_do_not_hide_what_else_has_ended(harness: BrokerHarness) -> None:
    call = Program("module", POOL_PROGRAM, python=b"python")
    harness.submit()
    harness.submit(wanted(program=call), indexes=tuple(range(20)))
    for number in range(1, 22):
        harness.run(number)
        harness.end(number, Outcome("exited", 0))
        harness.broker.control.close_job(harness.broker.work.job(number))
    harness.ask()  # It is on disk by then.
    few, all_of_them = harness.ask(messages.AskJobs(finished=5), messages.AskJobs(finished=1000))
    assert isinstance(few, messages.Jobs)
    assert isinstance(all_of_them, messages.Jobs)
    assert [row.id for row in few.rows] == [1]
    assert len(all_of_them.rows) == 21


def test_how_many_wait_is_told_though_not_all_are_shown(harness: BrokerHarness) -> None:
    harness.submit(indexes=tuple(range(150)))
    (shown,) = harness.ask(messages.AskStatus())
    assert isinstance(shown, messages.Snapshot)
    assert (len(shown.waiting), shown.waits) == (100, 150)


def test_a_retry_is_of_all_or_of_none_and_takes_dependencies_along(harness: BrokerHarness) -> None:
    harness.submit()
    harness.submit(wanted(after_ok=(1,)))
    harness.submit()
    for number in (1, 3):
        harness.run(number)
        harness.end(number, Outcome("exited", 3))
    harness.ask()
    assert isinstance(harness.state(2), Finished)
    assert (
        "would wait for ever" in refusal(harness.ask(messages.JobAction("retry", (3, 2)))).message
    )
    assert isinstance(harness.state(3), Finished)
    (done,) = harness.ask(messages.JobAction("retry", (1, 2)))
    assert isinstance(done, messages.Done)
    assert harness.broker.queue.wait_queue.get(2) is not None
    assert (harness.broker.state[2].attempt, harness.broker.state[2].past) == (2, ())


def test_a_foreground_job_cannot_be_done_again(harness: BrokerHarness) -> None:
    work = harness.broker.work
    work.decided(None, Submitted(job(1)))
    work.happened(Withdrawn(1, 2.0, Outcome("stopped", 143)))
    work.commit()
    assert "foreground" in refusal(harness.ask(messages.JobAction("retry", (1,)))).message


def test_an_environment_that_no_program_can_have_is_refused(harness: BrokerHarness) -> None:
    harness.submit()
    harness.run(1)
    harness.end(1, Outcome("exited", 3))
    harness.ask()
    assert (
        "null byte"
        in refusal(harness.ask(messages.JobAction("retry", (1,), {b"A": b"\0"}))).message
    )
    assert (
        "MiB"
        in refusal(harness.ask(messages.JobAction("retry", (1,), {b"A": b"x" * (7 << 20)}))).message
    )
    assert isinstance(harness.state(1), Finished)


@pytest.mark.parametrize("jump", [-DAY, DAY])
def test_a_wall_clock_that_is_set_decides_nothing(
    harness: BrokerHarness, clock: FakeClock, jump: float
) -> None:
    """Not who is first, not for how long one is put off, not how long it waited."""
    first, second = harness.submit()[0], harness.submit()[0]
    harness.run(first)
    harness.end(first, Outcome("exited", 3, ran=60.0), Again("exit code 3", delay=5.0))
    clock.at += jump
    third = harness.submit()[0]
    harness.ask()
    waiting = harness.broker.queue.wait_queue
    assert [one.job for one in waiting] == [first, second, third]
    assert waiting.get(first).held == "exit code 3"  # type: ignore[union-attr]
    clock.tick += 5.0
    harness.broker.queue.touch(first)
    harness.ask()
    assert waiting.get(first).held == ""  # type: ignore[union-attr]
    harness.run(second)
    held = harness.broker.state[second].holds
    assert held is not None
    assert held.waited == 5.0


def test_the_next_broker_waits_for_the_rest_of_a_delay(tmp_path: Path, clock: FakeClock) -> None:
    harness = BrokerHarness(tmp_path / "home", clock)
    number = harness.submit()[0]
    harness.run(number)
    harness.end(number, Outcome("exited", 3, ran=60.0), Again("exit code 3", delay=300.0))
    harness.ask()
    harness.close()
    clock.tick += 299.0
    clock.at -= DAY
    later = BrokerHarness(tmp_path / "home", clock)
    waiting: Job = later.broker.state[number]
    assert later.broker.queue.delay(waiting) == 1.0
    later.close()


def test_a_paused_job_is_paused_for_the_next_broker(tmp_path: Path, clock: FakeClock) -> None:
    harness = BrokerHarness(tmp_path / "home", clock)
    harness.submit()
    harness.ask(messages.JobAction("pause", (1,)))
    harness.close()
    later = BrokerHarness(tmp_path / "home", clock)
    assert isinstance(later.state(1), Paused)
    (reply,) = later.ask(messages.JobAction("resume", (1,)))
    assert isinstance(reply, messages.Done)
    assert isinstance(later.state(1), Waiting)
    later.close()


def test_a_lease_for_a_process_needs_the_process_and_no_program(harness: BrokerHarness) -> None:
    """And a program that is to run is one."""
    program = Program("process", b"/home/someone/train.py")
    for request, says in (
        (messages.LeaseInProcess(wanted(client=KEEPER), "t"), "of its own"),
        (messages.LeaseInProcess(wanted(program=program), "t"), "of its own"),
        (
            messages.LeaseInProcess(wanted(program=program, client=Process(1, 12345)), "t"),
            "the process 1",
        ),
        (messages.Submit(wanted(program=program), "t"), "no program"),
    ):
        assert says in refusal(harness.ask(request)).message
    assert harness.ask(messages.GiveBack(7, "t")) == [messages.Done(())]
    assert len(harness.broker.state) == 0


def test_what_was_asked_of_a_job_that_was_being_started_is_known_to_the_next_broker(
    tmp_path: Path, clock: FakeClock
) -> None:
    """Its worker never came: it waits, paused, or is cancelled."""
    harness = BrokerHarness(tmp_path / "home", clock)
    harness.submit()
    harness.submit()
    harness.grant(1)
    harness.grant(2)
    replies = harness.ask(messages.JobAction("pause", (1,)), messages.JobAction("cancel", (2,)))
    assert [type(reply) for reply in replies] == [messages.Done] * 2
    harness.close()
    later = BrokerHarness(tmp_path / "home", clock)
    assert isinstance(later.state(1), Paused)
    assert later.broker.state[1].holds is None
    outcome = later.state(2)
    assert isinstance(outcome, Finished)
    assert outcome.outcome.cause == "cancelled"
    later.close()


def test_a_job_whose_client_hung_up_while_it_was_started_does_not_wait_again(
    harness: BrokerHarness,
) -> None:
    """Though the client lives: a pool lets go of one worker and goes on."""
    living = Process(os.getpid(), process_tree.start_time(os.getpid()) or 0)
    client = Client(harness.reactor)
    harness.others.append(client)
    client.connection.frames.descriptors = [os.dup(0) for _ in range(3)]
    harness.requests.handle(client.connection, messages.Run(wanted(client=living), "a token"))
    harness.grant(1)
    harness.requests.disconnected(client.connection)
    harness.broker.attempts.never_ran(harness.broker.state[1].attempt_id, "its keeper never came")
    harness.broker.commit()
    assert isinstance(harness.state(1), Finished)


def test_a_job_that_never_gets_to_its_first_line_is_tried_ever_more_slowly(
    harness: BrokerHarness,
) -> None:
    """A few times at once, since that costs nothing; then it says why it waits."""
    harness.submit()
    pauses = []
    for _ in range(12):
        harness.grant(1)
        harness.broker.attempts.never_ran(harness.broker.state[1].attempt_id, "its worker ended")
        pauses.append(harness.broker.queue.delay(harness.broker.state[1]))
    assert pauses == [0.0, 0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    waiting = harness.broker.state[1].state
    assert isinstance(waiting, Waiting)
    assert waiting.why == "its worker ended, 12 times in a row"
    harness.grant(1)
    harness.end(1, Outcome("exited", 3, ran=60.0), Again("exit code 3"))
    assert harness.broker.state[1].false_starts == 0


def test_a_submission_that_makes_no_sense_is_refused_whole(harness: BrokerHarness) -> None:
    for request, says in (
        (messages.Submit(wanted(client=KEEPER), "t"), "has no client"),
        (messages.Submit(wanted(after=(1,)), "t"), "no job 1"),
        (messages.Submit(wanted(memory=Exactly(64 * GiB)), "t"), "2.0 GiB"),
        (messages.Submit(wanted(device="gpu7"), "t"), "no device"),
        (messages.Submit(wanted(gang=Gang(1, (("worker", 2),))), "t"), "made by the broker"),
        (messages.Submit(wanted(), "t", tuple(range(100_001))), "too large"),
    ):
        (reply,) = harness.ask(request)
        assert isinstance(reply, messages.Refused)
        assert says in reply.message
    assert len(harness.broker.state) == 0
    assert harness.submit() == (1,)


@pytest.fixture
def outer(harness: BrokerHarness) -> messages.Under:
    """A job that runs under a lease of 1 GiB, as its own program could show it."""
    harness.submit(wanted(memory=Exactly(GiB), priority="low", service="opportunistic"))
    harness.run(1, ceiling=GiB)
    (harness.broker.home.runs / "1.1").mkdir(parents=True)
    return messages.Under(1, harness.broker.state[1].lease_token)


def test_what_a_program_under_a_lease_starts_comes_out_of_that_lease(
    harness: BrokerHarness, outer: messages.Under
) -> None:
    assert harness.start(outer) == messages.Accepted(2)
    spec = harness.broker.state[2].spec
    assert (spec.within, spec.priority, spec.service) == (1, "low", "opportunistic")
    one = harness.broker.queue.wait_queue.get(2)
    assert one is not None
    assert one.devices == ("the lease of #1",)


def test_what_is_too_large_for_the_outer_lease_is_refused_though_the_device_could_give_it(
    harness: BrokerHarness, outer: messages.Under
) -> None:
    reply = harness.start(outer, memory=Exactly(1536 * MiB))
    assert isinstance(reply, messages.Refused)
    assert reply.message == (
        "1.5 GiB will never fit on the lease of #1: it has 1.0 GiB, of which one program can be "
        "given 640 MiB."
    )
    assert reply.hint == "Ask for at most 640MiB, or give #1 a larger lease."
    assert isinstance(harness.start(None, memory=Exactly(1536 * MiB)), messages.Accepted)


@pytest.mark.parametrize("memory", [Auto(), Grow(), Share(0.25)])
def test_every_way_to_ask_for_memory_works_within_a_lease(
    harness: BrokerHarness, outer: messages.Under, memory: MemoryAsk
) -> None:
    assert harness.start(outer, memory=memory) == messages.Accepted(2)
    (grant,) = harness.broker.planner.plan().grants
    assert (grant.job, grant.device) == (2, "the lease of #1")
    assert grant.size.ceiling == (20 if memory == Grow() else 256) * MiB
    assert grant.size.most == (0 if isinstance(memory, Share) else 640 * MiB)


def test_nobody_can_claim_the_lease_of_another(
    harness: BrokerHarness, outer: messages.Under
) -> None:
    reply = harness.start(messages.Under(1, "guessed"))
    assert isinstance(reply, messages.Refused)
    assert "does not run under the lease of job 1" in reply.message
    assert harness.start(None, within=1) == messages.Accepted(2)
    assert harness.broker.state[2].spec.within is None
    refused = refusal(harness.ask(messages.Submit(wanted(within=1), "t")))
    assert "has no client" in refused.message


def test_a_lease_that_has_ended_lends_nothing_and_hinders_nobody(
    harness: BrokerHarness, outer: messages.Under
) -> None:
    harness.end(1, Outcome("exited", 0))
    assert harness.start(outer) == messages.Accepted(2)
    assert harness.broker.state[2].spec.within is None


def test_a_job_for_another_device_does_not_come_out_of_the_lease_on_this_one(
    harness: BrokerHarness, outer: messages.Under
) -> None:
    reply = harness.start(outer, device="gpu")
    assert isinstance(reply, messages.Refused)
    assert "no GPU here" in reply.message
    assert harness.start(outer, device="cpu") == messages.Accepted(2)
    assert harness.broker.state[2].spec.within == 1


def test_those_that_wait_within_a_lease_go_when_it_ends(
    harness: BrokerHarness, outer: messages.Under
) -> None:
    harness.start(outer)
    harness.broker.attempts.ended("1.1", Ending(0))
    assert isinstance(harness.state(2), Finished)
    assert (
        "#1, out of whose lease its own came, has ended" in harness.broker.snapshots.row(2).reason
    )


def test_what_a_program_has_lent_counts_as_needed_for_the_next_of_its_kind(
    harness: BrokerHarness, outer: messages.Under
) -> None:
    harness.start(outer)
    harness.run(2, ceiling=256 * MiB)
    broker = harness.broker
    broker.nested_leases.settle(1)
    one, lent = broker.state[1], broker.state[2].lease
    assert lent is not None
    broker.attempts.ended("1.1", Ending(0, system_peak=50 * MiB))
    broker.commit()
    known = broker.work.ledger.measurements.evidence(one, "cpu")
    assert (known.peak, known.outside) == (lent.charge, 50 * MiB)


def test_the_next_broker_knows_who_is_within_whom(
    harness: BrokerHarness, outer: messages.Under, clock: FakeClock, tmp_path: Path
) -> None:
    harness.start(outer)
    harness.broker.commit()
    known = State(harness.broker.work.ledger.live())
    assert [one.id for one in known.within(1)] == [2]
    assert [one.id for one in known.outer()] == [1]


def test_a_dry_run_says_what_would_become_of_a_job_and_changes_nothing(
    harness: BrokerHarness,
) -> None:
    (now,) = harness.ask(messages.AskStart(wanted(memory=Exactly(GiB))))
    assert isinstance(now, messages.WouldStart)
    assert [(one.device, one.ceiling) for one in now.leases] == [("cpu", GiB)]
    assert (now.reason, now.start) == ("", 0.0)
    assert harness.submit(wanted(memory=Exactly(1200 * MiB), time=60.0)) == (1,)
    harness.run(1, 1200 * MiB)
    before = harness.broker.queue.wait_queue
    (later,) = harness.ask(messages.AskStart(wanted(memory=Exactly(GiB))))
    assert isinstance(later, messages.WouldStart)
    assert later.leases == ()
    assert later.reason.startswith("needs 1.0 GiB")
    assert "held by #1" in later.reason
    assert 2 not in before
    assert len(harness.broker.state) == 1
    assert harness.submit() == (2,)


def test_a_dry_run_of_what_can_never_start_is_refused(harness: BrokerHarness) -> None:
    (large,) = harness.ask(messages.AskStart(wanted(memory=Exactly(9 * GiB))))
    assert isinstance(large, messages.Refused)
    assert "will never fit" in large.message
    named = messages.AskStart(wanted(device="gpu7"))
    assert "gpu7" in refusal(harness.ask(named)).message
