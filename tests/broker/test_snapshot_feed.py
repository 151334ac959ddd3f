"""Subscriptions to snapshots, through real sockets."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from sublet.broker import snapshot_feed
from sublet.broker.broker import Broker
from sublet.broker.connections import Listener
from sublet.broker.ledger import Ledger
from sublet.client.connection import connect
from sublet.client.snapshot_feed import View, follow_connection
from sublet.domain.job import Program
from sublet.domain.memory import Exactly
from sublet.errors import InternalError
from sublet.home import Home
from sublet.reactor import Reactor
from sublet.units import MiB
from sublet.wire import messages
from support.client import Client
from support.fakes import FakeClock, FakeProbe, PuppetBackend
from support.jobs import device, job

SPEC = replace(
    job().spec,
    client=None,
    program=Program("command", b"/bin/true"),
    memory=Exactly(900 * MiB),
)


class BrokerHarness:
    """A broker with one subscriber, whose view is kept as a client would keep it."""

    def __init__(self, root: Path) -> None:
        self.home = Home(root)
        self.home.make()
        self.reactor = Reactor()
        self.backend = PuppetBackend()
        ledger, probe = Ledger.open(self.home.ledger), FakeProbe(device(capacity=2048 * MiB))
        self.broker = Broker(self.reactor, self.home, ledger, probe, FakeClock(), self.backend)
        self.client = Client(self.reactor)
        self.view = View(0, {}, {})
        self.updates: list[messages.Update] = []
        self.events: list[tuple[int, str]] = []
        self.submitted = 0

    def ask(self, request: messages.Request) -> None:
        client = Client(self.reactor)
        self.broker.requests.handle(client.connection, request)
        self.broker.settle()
        client.close()

    def submit(self, count: int = 1, name: str = "train.py") -> None:
        self.submitted += 1
        indexes = tuple(range(count)) if count > 1 else ()
        self.ask(messages.Submit(replace(SPEC, name=name), f"{self.submitted}", indexes))

    def subscribe(self) -> None:
        self.broker.requests.handle(self.client.connection, messages.Subscribe())

    def turn_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.reactor.run_once()
            self.broker.settle()
            self.read()

    def read(self) -> None:
        for reply in self.client.heard():
            assert isinstance(reply, messages.Update)
            self.updates.append(reply)
            self.view = self.view.after(reply)
            self.events += [(event.job, event.state) for event in reply.events]

    def states(self) -> dict[int, str]:
        return {number: row.state for number, row in self.view.jobs.items()}

    def close(self) -> None:
        self.client.close()
        self.broker.close()
        self.reactor.close()


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[BrokerHarness]:
    made = BrokerHarness(tmp_path / "home")
    yield made
    made.close()


def test_a_subscriber_gets_the_whole_and_then_what_changes(harness: BrokerHarness) -> None:
    harness.submit()
    harness.subscribe()
    harness.read()
    assert [update.whole for update in harness.updates] == [True]
    assert harness.states() == {1: "starting"}
    assert harness.view.devices["cpu"].leased > 900 * MiB
    harness.submit(count=2)
    harness.turn_until(lambda: len(harness.states()) == 3)
    harness.backend.begin("1.1")
    harness.backend.end("1.1")
    harness.turn_until(lambda: (1, "finished") in harness.events)
    assert not any(update.whole for update in harness.updates[1:])
    assert set(harness.states()) == {1, 2, 3}
    assert harness.states()[1] == "finished"
    sequence = [update.sequence for update in harness.updates]
    assert sequence == list(range(sequence[0], sequence[0] + len(sequence)))


def test_a_view_refuses_an_update_after_a_gap() -> None:
    view = View(4, {}, {})
    with pytest.raises(InternalError):
        view.after(messages.Update(6, False, (), ()))
    assert view.after(messages.Update(9, True, (), ())).sequence == 9


def test_a_subscriber_that_does_not_read_is_bounded_and_gets_the_whole_later(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_feed, "_MOST_UNSENT", 1 << 14)
    monkeypatch.setattr(snapshot_feed, "_MOST_LIVE", 500)
    monkeypatch.setattr(snapshot_feed, "_SOON", 0.0)
    harness.subscribe()
    harness.read()
    largest = 0
    connection = harness.client.connection
    for number in range(60):
        harness.submit(count=10, name=f"{number}" + "x" * 150)
        harness.reactor.run_once()
        harness.broker.settle()
        largest = max(largest, connection.frames.unsent)
    assert connection.open
    assert 0 < largest < (1 << 14) + (1 << 19)
    harness.turn_until(lambda: len(harness.states()) >= snapshot_feed._MOST_LIVE)
    harness.turn_until(lambda: sum(update.whole for update in harness.updates) == 2)
    rows = harness.broker.snapshots.rows((), snapshot_feed._MOST_LIVE, snapshot_feed._MOST_FINISHED)
    assert set(harness.view.jobs) == {row.id for row in rows.rows}
    assert harness.view.left_out == 600 - snapshot_feed._MOST_LIVE


def test_nothing_is_kept_for_subscribers_that_have_left(harness: BrokerHarness) -> None:
    harness.subscribe()
    harness.broker.requests.disconnected(harness.client.connection)
    harness.submit()
    assert not harness.broker.feed._behind
    assert not harness.broker.feed._events


def test_a_client_follows_through_the_broker_s_own_socket(harness: BrokerHarness) -> None:
    """Until the broker ends."""
    listener = Listener(harness.reactor, harness.home.socket, harness.broker.requests)
    connection = connect(harness.home)
    assert connection is not None
    views: list[View] = []

    def follow() -> None:
        with closing(connection):
            views.extend(follow_connection(connection))

    thread = threading.Thread(target=follow)
    thread.start()
    while not views:
        harness.reactor.call_later(0.01, lambda: None)
        harness.reactor.run_once()
        harness.broker.settle()
    harness.submit()
    while 1 not in views[-1].jobs:
        harness.reactor.run_once()
        harness.broker.settle()
    for one in list(listener._connections):
        one.close()
    listener.close()
    thread.join()
    assert views[-1].events[-1].job == 1


def test_changes_are_gathered_for_longer_when_a_look_takes_long(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a view that is open on very many jobs never takes most of the broker's time."""
    rows = harness.broker.snapshots.rows

    def slow_rows(numbers: tuple[int, ...], live: int, finished: int) -> messages.Jobs:
        harness.broker.clock.tick += 2.0  # type: ignore[attr-defined]
        return rows(numbers, live, finished)

    monkeypatch.setattr(harness.broker.snapshots, "rows", slow_rows)
    harness.subscribe()
    waits: list[float] = []
    monkeypatch.setattr(harness.reactor, "call_once", lambda seconds, _: waits.append(seconds))
    harness.broker.feed.note([])
    assert waits == [10.0]
