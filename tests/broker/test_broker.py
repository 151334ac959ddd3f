"""The whole broker, driven through its request handler and a backend without processes."""

import socket
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sublet.backends.backend import Ending, LaunchFailed
from sublet.broker.broker import Broker
from sublet.broker.ledger import Ledger
from sublet.domain.job import Finished, Job, JobSpec, Program, Role, Starting
from sublet.domain.memory import Exactly
from sublet.home import Home
from sublet.reactor import Reactor
from sublet.units import MiB
from sublet.wire import messages
from support.client import Client
from support.fakes import FakeClock, FakeProbe, PuppetBackend
from support.jobs import device, job

CAPACITY = 2048 * MiB
GANGS: tuple[tuple[tuple[Role, int], ...], ...] = (
    (("worker", 2),),
    (("chief", 1), ("worker", 2), ("ps", 1)),
    (("chief", 1), ("worker", 1), ("evaluator", 1)),
)
VERBS: tuple[messages.Verb, ...] = ("cancel", "pause", "resume", "retry")


def wanted(memory: int, retries: int = 0, service: str = "guaranteed") -> JobSpec:
    """A submitted job that asks for so much."""
    return msgspec.structs.replace(
        job().spec,
        client=None,
        program=Program("command", b"/bin/true"),
        memory=Exactly(memory),
        retries=retries,
        service=service,
    )


def can_be_bound(port: int) -> bool:
    """Whether somebody who wants the port for himself would get it."""
    with socket.socket() as sock:
        try:
            sock.bind(("", port))
        except OSError:
            return False
    return True


class BrokerMachine(RuleBasedStateMachine):
    """Clients, workers, a disk that fills up and brokers that are replaced, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.root = TemporaryDirectory(prefix="sublet-")
        self.home = Home(Path(self.root.name))
        self.home.make()
        self.clock = FakeClock()
        self.backend = PuppetBackend(self.check_launch)
        self.accepted: set[int] = set()
        self.gangs: list[tuple[int, ...]] = []
        self.tokens = 0
        self.open()

    def open(self) -> None:
        self.reactor = Reactor()
        ledger, probe = Ledger.open(self.home.ledger), FakeProbe(device(capacity=CAPACITY))
        self.broker = Broker(self.reactor, self.home, ledger, probe, self.clock, self.backend)
        self.client = Client(self.reactor)
        self.full = False
        self.broker.settle()

    def shut(self) -> None:
        self.client.close()
        self.broker.close()
        self.reactor.close()

    def teardown(self) -> None:
        self.shut()
        self.root.cleanup()

    def ask(self, request: messages.Request) -> messages.Reply:
        self.broker.requests.handle(self.client.connection, request)
        self.broker.settle()
        (reply,) = self.client.heard()
        return reply

    def check_launch(self, launched: Job) -> None:
        """Another reader of the ledger finds the lease of every attempt that is launched, and no
        other attempt of the same job is live."""
        with sqlite3.connect(self.home.ledger) as db:
            (record,) = db.execute(
                "SELECT record FROM jobs WHERE id = ?", (launched.id,)
            ).fetchone()
        db.close()
        committed = msgspec.json.decode(record, type=Job)
        assert isinstance(committed.state, Starting)
        assert (committed.attempt, committed.lease) == (launched.attempt, launched.lease)
        assert all(one.id != launched.id for one in self.backend.live.values())

    @rule(
        memory=st.integers(64, 1024),
        count=st.integers(1, 3),
        retries=st.integers(0, 2),
        service=st.sampled_from(["guaranteed", "opportunistic"]),
    )
    def submit(self, memory: int, count: int, retries: int, service: str) -> None:
        self.tokens += 1
        indexes = tuple(range(count)) if count > 1 else ()
        spec = wanted(memory * MiB, retries, service)
        reply = self.ask(messages.Submit(spec, f"token {self.tokens}", indexes))
        if isinstance(reply, messages.Queued):
            assert not self.full
            assert self.accepted.isdisjoint(reply.jobs)
            self.accepted |= set(reply.jobs)
        else:
            assert self.full

    @rule(
        memory=st.integers(64, 600),
        roles=st.sampled_from(GANGS),
        retries=st.integers(0, 2),
    )
    def launch(self, memory: int, roles: tuple[tuple[Role, int], ...], retries: int) -> None:
        self.tokens += 1
        spec = wanted(memory * MiB, retries)
        reply = self.ask(messages.Submit(spec, f"token {self.tokens}", roles=roles))
        if isinstance(reply, messages.Queued):
            assert len(reply.jobs) == sum(count for _, count in roles)
            self.accepted |= set(reply.jobs)
            self.gangs.append(reply.jobs)
        else:
            assert isinstance(reply, messages.Refused)
            # The first program is charged for a process of which nothing is known.
            assert self.full or sum(count for _, count in roles) * (memory + 384) * MiB > CAPACITY

    @precondition(lambda self: self.accepted)
    @rule(data=st.data(), verb=st.sampled_from(VERBS))
    def act(self, data: st.DataObject, verb: messages.Verb) -> None:
        number = data.draw(st.sampled_from(sorted(self.accepted)))
        self.ask(messages.JobAction(verb, (number,)))

    @precondition(lambda self: self.backend.live)
    @rule(data=st.data(), how=st.sampled_from(["begins", "ends", "fails", "never begins"]))
    def report(self, data: st.DataObject, how: str) -> None:
        """A worker does something of its own accord, or because it was asked to stop."""
        attempt_id = data.draw(st.sampled_from(sorted(self.backend.live)))
        begun = attempt_id in self.backend.begun
        if how == "begins" and not begun and attempt_id not in self.backend.stopping:
            self.backend.begin(attempt_id)
        elif how == "never begins" and not begun:
            self.backend.fail_to_begin(attempt_id)
        elif how in ("ends", "fails"):
            self.backend.end(attempt_id, Ending(0 if how == "ends" else 256))
        self.broker.settle()

    @rule(seconds=st.floats(0.0, 10_000.0))
    def wait(self, seconds: float) -> None:
        self.clock.tick += seconds
        self.clock.at += seconds
        self.broker.work.touch_waiting()
        self.broker.settle()

    @rule(full=st.booleans())
    def fill_disk(self, full: bool) -> None:
        self.full = full
        self.broker.work.ledger._db.execute(f"PRAGMA query_only = {int(full)}")

    @rule(failing=st.booleans())
    def break_launches(self, failing: bool) -> None:
        error = OSError(24, "Too many open files")
        self.backend.failure = LaunchFailed("start", "a test", error) if failing else None

    @precondition(lambda self: not self.full)
    @rule()
    def replace_broker(self) -> None:
        self.broker.settle()
        self.shut()
        self.open()

    @invariant()
    def no_more_is_leased_than_there_is(self) -> None:
        assert sum(self.charges().values()) <= CAPACITY

    @invariant()
    def a_job_has_one_live_attempt_at_most(self) -> None:
        numbers = [one.id for one in self.backend.live.values()]
        assert len(numbers) == len(set(numbers))

    @invariant()
    def every_live_attempt_holds_its_lease(self) -> None:
        """The broker never takes a lease for free whose processes may still live."""
        holding = {one.attempt_id for one in self.broker.state.holding()}
        assert set(self.backend.live) <= holding

    @invariant()
    def no_accepted_job_is_lost(self) -> None:
        assert all(self.broker.work.find(number) is not None for number in self.accepted)

    @invariant()
    def no_gang_is_half_started(self) -> None:
        """Where a task waits, no other goes on; where one has failed for good, none is left."""
        for numbers in self.gangs:
            jobs = [self.broker.work.find(number) for number in numbers]
            held = [one.holds for one in jobs if one is not None]
            goes_on = any(one is not None and not one.stopping for one in held)
            waits = any(
                one is not None and one.holds is None and not isinstance(one.state, Finished)
                for one in jobs
            )
            assert not (goes_on and waits), jobs

    @invariant()
    def ports_of_a_gang_that_starts_are_held(self) -> None:
        for one in self.backend.live.values():
            gang, lease = one.spec.gang, one.lease
            if gang is not None and lease is not None and one.attempt_id not in self.backend.begun:
                assert not can_be_bound(lease.ports[gang.at])

    def charges(self) -> dict[str, int]:
        leases = {one.attempt_id: one.lease for one in self.backend.live.values()}
        return {name: lease.charge for name, lease in leases.items() if lease is not None}


TestBroker = BrokerMachine.TestCase
TestBroker.settings = settings(max_examples=40, stateful_step_count=30)


def test_a_job_that_waits_is_launched_when_the_one_before_it_has_ended(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.make()
    reactor, backend = Reactor(), PuppetBackend()
    ledger, probe = Ledger.open(home.ledger), FakeProbe(device(capacity=CAPACITY))
    broker = Broker(reactor, home, ledger, probe, FakeClock(), backend)
    client = Client(reactor)
    for token in ("first", "second"):
        broker.requests.handle(client.connection, messages.Submit(wanted(1200 * MiB), token))
    broker.settle()
    assert set(backend.live) == {"1.1"}
    backend.begin("1.1")
    backend.end("1.1")
    broker.settle()
    assert set(backend.live) == {"2.1"}
    assert backend.forgotten == ["1.1"]
    client.close()
    broker.close()
    reactor.close()
