"""What clients want, put to a real broker that starts nothing: its device is full."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sublet.broker.broker import Broker
from sublet.broker.ledger import Ledger
from sublet.broker.requests import Requests
from sublet.broker.state import AttemptEnded, Granted, Submitted, Withdrawn, WorkerStarted
from sublet.devices import Probe
from sublet.domain.job import Again, Finished, Job, JobSpec, Outcome, Paused, Waiting
from sublet.domain.memory import Exactly
from sublet.home import Home
from sublet.hub import Hub
from sublet.units import GiB, MiB
from sublet.wire import messages as say
from support.client import Client
from support.jobs import KEEPER, WORKER, job, lease

DAY = 86400.0


class HandClock:
    """Both clocks, moved by hand."""

    def __init__(self) -> None:
        self.tick = 1000.0
        self.at = 2e9

    def now(self) -> float:
        return self.tick

    def wall(self) -> float:
        return self.at


class Office:
    """A broker and its desk for clients."""

    def __init__(self, root: Path, clock: HandClock) -> None:
        home = Home(root)
        home.make()
        self.clock = clock
        self.hub = Hub()
        self.broker = Broker(self.hub, home, Ledger.open(home.ledger), Probe.open(2 * GiB), clock)
        self.desk = Requests(self.broker)
        self.client = Client(self.hub)

    def ask(self, *requests: say.Request) -> list[say.Reply]:
        """All of them in one turn of the broker, and what it says."""
        for request in requests:
            self.desk.asked(self.client.session, request)
        # As after each turn, without following the plan: nothing is to be started here.
        self.broker.plan()
        self.broker.books.write()
        return self.client.heard()

    def submit(self, spec: JobSpec | None = None, **options: object) -> tuple[int, ...]:
        request = say.Submit(spec or wanted(), "a token", **options)  # type: ignore[arg-type]
        (reply,) = self.ask(msgspec.structs.replace(request, token=f"{self.broker.next_id}"))
        assert isinstance(reply, say.Queued), reply
        return reply.jobs

    def run(self, number: int) -> None:
        """As if it had been granted a lease and had started."""
        self.grant(number)
        at, attempt = self.clock.wall(), self.broker.state[number].attempt
        event = WorkerStarted(number, attempt, at, KEEPER, WORKER, "warm")
        self.broker.books.happened(event)

    def grant(self, number: int) -> None:
        """As if it had been granted a lease, and its worker had not come yet."""
        at, tick = self.clock.wall(), self.clock.now()
        one = self.broker.state[number]
        self.broker.books.decided(one, Granted(number, at, tick, lease(ceiling=MiB)))

    def end(self, number: int, told: Outcome, again: Again | None = None) -> None:
        event = AttemptEnded(
            number,
            self.broker.state[number].attempt,
            self.clock.wall(),
            told,
            again,
            self.clock.now(),
        )
        self.broker.books.happened(event)

    def state(self, number: int) -> object:
        return self.broker.job(number).state

    def close(self) -> None:
        self.client.close()
        self.broker.close()
        self.hub.close()


def wanted(**fields: object) -> JobSpec:
    known: dict[str, object] = {"client": None, "memory": Exactly(64 * MiB), "cold": "a test"}
    return msgspec.structs.replace(job().spec, **(known | fields))


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def office(tmp_path: Path, clock: HandClock) -> Iterator[Office]:
    made = Office(tmp_path / "home", clock)
    yield made
    made.close()


def refusal(replies: list[say.Reply]) -> say.Refused:
    (only,) = replies
    assert isinstance(only, say.Refused), only
    assert only.kind == "BadRequest", only
    return only


def test_the_same_request_gets_the_same_numbers_though_the_first_has_ended(
    office: Office,
) -> None:
    """An array of which one job is done, and another has changed since."""
    request = say.Submit(wanted(), "the same", (5, 6, 7), 1)
    (first,) = office.ask(request)
    assert first == say.Queued((1, 2, 3))
    office.run(1)
    office.end(1, Outcome("exited", 0))
    office.run(2)
    assert office.ask(request) == [first]
    assert len(office.broker.state) == 2


def test_two_who_cancel_the_same_job_both_hear_that_it_is(office: Office) -> None:
    """At once, and later: a request may be put again to the next broker."""
    office.submit()
    office.submit()
    office.run(2)
    replies = office.ask(*[say.Act("cancel", (1, 2))] * 2)
    assert [type(reply) for reply in replies] == [say.Done] * 2
    office.end(2, Outcome("cancelled", 143))
    (done,) = office.ask(say.Act("cancel", (2, 1)))
    assert done == say.Done(("#2 train.py was cancelled", "#1 train.py was cancelled"))


def test_a_job_that_has_ended_of_itself_was_not_cancelled(office: Office) -> None:
    office.submit()
    office.run(1)
    office.end(1, Outcome("exited", 0))
    assert "has finished already" in refusal(office.ask(say.Act("cancel", (1,)))).message


def test_an_act_is_done_to_all_or_to_none(office: Office) -> None:
    office.submit()
    office.submit()
    office.ask(say.Act("pause", (2,)))
    assert "paused already" in refusal(office.ask(say.Act("pause", (1, 2)))).message
    assert isinstance(office.state(1), Waiting)
    assert "no job 9" in refusal(office.ask(say.Act("cancel", (1, 9)))).message
    assert isinstance(office.state(1), Waiting)


def test_a_retry_is_of_all_or_of_none_and_takes_dependencies_along(office: Office) -> None:
    office.submit()
    office.submit(wanted(after_ok=(1,)))
    office.submit()
    for number in (1, 3):
        office.run(number)
        office.end(number, Outcome("exited", 3))
    office.ask()
    assert isinstance(office.state(2), Finished)
    assert "would wait for ever" in refusal(office.ask(say.Act("retry", (3, 2)))).message
    assert isinstance(office.state(3), Finished)
    (done,) = office.ask(say.Act("retry", (1, 2)))
    assert isinstance(done, say.Done)
    assert office.broker.queue.line.get(2) is not None
    assert (office.broker.state[2].attempt, office.broker.state[2].past) == (2, ())


def test_a_foreground_job_cannot_be_done_again(office: Office) -> None:
    books = office.broker.books
    books.decided(None, Submitted(job(1)))
    books.happened(Withdrawn(1, 2.0, Outcome("stopped", 143)))
    books.write()
    assert "foreground" in refusal(office.ask(say.Act("retry", (1,)))).message


@pytest.mark.parametrize("jump", [-DAY, DAY])
def test_a_wall_clock_that_is_set_decides_nothing(
    office: Office, clock: HandClock, jump: float
) -> None:
    """Not who is first, not for how long one is put off, not how long it waited."""
    first, second = office.submit()[0], office.submit()[0]
    office.run(first)
    office.end(first, Outcome("exited", 3, ran=60.0), Again("exit code 3", delay=5.0))
    clock.at += jump
    third = office.submit()[0]
    office.ask()
    line = office.broker.queue.line
    assert [one.job for one in line] == [first, second, third]
    assert line.get(first).held == "exit code 3"  # type: ignore[union-attr]
    clock.tick += 5.0
    office.broker.queue.touch(first)
    office.ask()
    assert line.get(first).held == ""  # type: ignore[union-attr]
    office.run(second)
    held = office.broker.state[second].holds
    assert held is not None
    assert held.waited == 5.0


def test_the_next_broker_waits_for_the_rest_of_a_delay(tmp_path: Path, clock: HandClock) -> None:
    office = Office(tmp_path / "home", clock)
    number = office.submit()[0]
    office.run(number)
    office.end(number, Outcome("exited", 3, ran=60.0), Again("exit code 3", delay=300.0))
    office.ask()
    office.close()
    clock.tick += 299.0
    clock.at -= DAY
    later = Office(tmp_path / "home", clock)
    waiting: Job = later.broker.state[number]
    assert later.broker.queue.delay(waiting) == 1.0
    later.close()


def test_a_paused_job_is_paused_for_the_next_broker(tmp_path: Path, clock: HandClock) -> None:
    office = Office(tmp_path / "home", clock)
    office.submit()
    office.ask(say.Act("pause", (1,)))
    office.close()
    later = Office(tmp_path / "home", clock)
    assert isinstance(later.state(1), Paused)
    (reply,) = later.ask(say.Act("resume", (1,)))
    assert isinstance(reply, say.Done)
    assert isinstance(later.state(1), Waiting)
    later.close()


def test_what_was_asked_of_a_job_that_was_being_started_is_known_to_the_next_broker(
    tmp_path: Path, clock: HandClock
) -> None:
    """Its worker never came: it waits, paused, or is cancelled."""
    office = Office(tmp_path / "home", clock)
    office.submit()
    office.submit()
    office.grant(1)
    office.grant(2)
    replies = office.ask(say.Act("pause", (1,)), say.Act("cancel", (2,)))
    assert [type(reply) for reply in replies] == [say.Done] * 2
    office.close()
    later = Office(tmp_path / "home", clock)
    assert isinstance(later.state(1), Paused)
    assert later.broker.state[1].holds is None
    told = later.state(2)
    assert isinstance(told, Finished)
    assert told.outcome.cause == "cancelled"
    later.close()


def test_a_submission_that_makes_no_sense_is_refused_whole(office: Office) -> None:
    for request, says in (
        (say.Submit(wanted(client=KEEPER), "t"), "has no client"),
        (say.Submit(wanted(after=(1,)), "t"), "no job 1"),
        (say.Submit(wanted(memory=Exactly(64 * GiB)), "t"), "2.0 GiB"),
        (say.Submit(wanted(device="gpu7"), "t"), "no device"),
        (say.Submit(wanted(), "t", tuple(range(100_001))), "too large"),
    ):
        (reply,) = office.ask(request)
        assert isinstance(reply, say.Refused)
        assert says in reply.message
    assert len(office.broker.state) == 0
    assert office.submit() == (1,)
