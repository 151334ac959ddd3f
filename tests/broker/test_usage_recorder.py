"""The broker records its devices' memory while leases are held, and sleeps otherwise."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from sublet.backends.backend import Ending
from sublet.broker.broker import Broker
from sublet.broker.device_usage import UsageSample
from sublet.broker.ledger import Ledger
from sublet.domain.device import Device
from sublet.domain.job import Program
from sublet.domain.memory import Exactly
from sublet.home import Home
from sublet.reactor import Reactor
from sublet.units import MiB
from sublet.wire import messages
from sublet.wire.rows import HoldingRow
from support.client import Client
from support.fakes import FakeClock, FakeProbe, PuppetBackend
from support.jobs import device, facts, job, lease, running

SPEC = replace(
    job().spec, client=None, program=Program("command", b"/bin/true"), memory=Exactly(500 * MiB)
)


class BrokerHarness:
    """A broker on a clock and a reactor that only the test moves."""

    def __init__(self, root: Path, *devices: Device) -> None:
        self.home = Home(root)
        self.home.make()
        self.devices = devices or (device(capacity=2048 * MiB),)
        self.reactor = _Timers()
        self.clock = FakeClock()
        self.backend = PuppetBackend()
        self.start()

    def start(self) -> None:
        ledger = Ledger.open(self.home.ledger)
        probe = FakeProbe(*self.devices)
        self.broker = Broker(self.reactor, self.home, ledger, probe, self.clock, self.backend)
        self.broker.settle()

    def ask(self, request: messages.Request) -> messages.Reply:
        client = Client(self.reactor)
        self.broker.requests.handle(client.connection, request)
        self.broker.settle()
        (reply,) = client.heard()
        client.close()
        return reply

    def submit(self, name: str = "train.py", gpus: int | None = None) -> None:
        self.ask(messages.Submit(replace(SPEC, name=name, gpus=gpus), name))

    def history(self, since: float = 0.0) -> messages.UsageHistory:
        reply = self.ask(messages.AskUsageHistory(since=since))
        assert isinstance(reply, messages.UsageHistory)
        return reply

    def pass_seconds(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.at += 1
            self.clock.tick += 1
            self.reactor.pass_seconds(1.0)
            self.broker.settle()

    def close(self) -> None:
        self.broker.close()
        self.reactor.close()


class _Timers(Reactor):
    """Timers that are due when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0
        self.due: list[tuple[float, Callable[[], object]]] = []

    def call_later(self, seconds: float, callback: Callable[[], object]) -> None:
        self.due.append((self.time + seconds, callback))

    def pass_seconds(self, seconds: float) -> None:
        self.time += seconds
        ready = [one for one in self.due if one[0] <= self.time]
        self.due = [one for one in self.due if one[0] > self.time]
        for _, callback in ready:
            callback()


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[BrokerHarness]:
    made = BrokerHarness(tmp_path / "home")
    yield made
    made.close()


def test_use_and_lease_of_a_job_are_recorded_while_it_runs(harness: BrokerHarness) -> None:
    harness.submit()
    harness.backend.begin("1.1")
    began = harness.clock.at
    for held in (100, 300, 200):
        harness.broker.usage.note_sample("1.1", UsageSample(held * MiB, held * MiB, (102,)))
        harness.pass_seconds(1)
    harness.backend.end("1.1")
    harness.broker.settle()
    harness.pass_seconds(2)
    history = harness.history()
    rows = [row for row in history.devices["cpu"] if row.at > began]
    assert [tuple(one.used // MiB for one in row.holdings) for row in rows] == [
        (100,),
        (300,),
        (200,),
        (),
    ]
    assert all(one.charge > 500 * MiB for row in rows for one in row.holdings)
    assert history.names == {1: "train.py"}
    assert [(one.kind, one.text) for one in history.events] == [("granted", ""), ("ended", "done")]


def test_nothing_is_recorded_while_nothing_happens(harness: BrokerHarness) -> None:
    harness.submit()
    harness.backend.begin("1.1")
    harness.pass_seconds(5)
    harness.backend.end("1.1")
    harness.broker.settle()
    harness.pass_seconds(10)
    looks = [callback for _, callback in harness.reactor.due if "_look" in repr(callback)]
    assert not looks
    before = harness.history().devices["cpu"][-1].at
    harness.pass_seconds(100)
    assert harness.history().devices["cpu"][-1].at == before


def test_how_attempts_end_is_told_apart(harness: BrokerHarness) -> None:
    for number, ending in enumerate((Ending(1, ""), Ending(137, "")), 1):
        harness.submit(f"{number}.py")
        harness.backend.begin(f"{number}.1")
        harness.backend.end(f"{number}.1", ending)
        harness.broker.settle()
        harness.pass_seconds(1)
    harness.submit("3.py")
    harness.backend.begin("3.1")
    harness.ask(messages.JobAction(verb="cancel", jobs=(3,)))
    harness.backend.end("3.1")
    harness.broker.settle()
    harness.submit("4.py")
    harness.backend.fail_to_begin("4.1")
    harness.broker.settle()
    ends = [(one.job, one.kind) for one in harness.history().events if one.kind != "granted"]
    assert ends == [(1, "failed"), (2, "failed"), (3, "cancelled"), (4, "ended")]


def test_leases_that_an_earlier_broker_granted_are_recorded_and_not_granted_again(
    harness: BrokerHarness,
) -> None:
    harness.submit()
    harness.backend.begin("1.1")
    harness.broker.settle()
    harness.broker.work.ledger.close()
    harness.start()
    harness.pass_seconds(3)
    history = harness.history()
    assert history.began == harness.clock.at - 3
    assert not history.events
    assert [one.job for one in history.devices["cpu"][-1].holdings] == [1]


def test_a_job_with_two_cards_is_recorded_on_both(tmp_path: Path) -> None:
    cards = [device(name, capacity=8192 * MiB) for name in ("gpu0", "gpu1")]
    harness = BrokerHarness(tmp_path / "home", device(capacity=2048 * MiB), *cards)
    harness.submit(gpus=2)
    harness.backend.begin("1.1")
    harness.pass_seconds(2)
    history = harness.history()
    held = {name: [one.job for one in rows[-1].holdings] for name, rows in history.devices.items()}
    assert held == {"cpu": [], "gpu0": [1], "gpu1": [1]}
    assert [(one.device, one.kind) for one in history.events] == [
        ("gpu0", "granted"),
        ("gpu1", "granted"),
    ]
    harness.close()


def test_a_lease_within_another_counts_there(harness: BrokerHarness) -> None:
    outer, inner = job(1, running(lease())), job(2, running(lease(ceiling=100 * MiB)))
    inner = replace(inner, spec=replace(inner.spec, within=1))
    samples = harness.broker.usage.samples
    samples["1.1"] = UsageSample(300 * MiB, 300 * MiB, ())
    samples["2.1"] = UsageSample(50 * MiB, 50 * MiB, ())
    facts_now = facts(harness.devices[0])
    held = harness.broker.recorder._holdings([outer, inner], facts_now)
    assert held == (HoldingRow(1, lease().charge, 350 * MiB),)
    # One whose outer lease has ended counts by itself.
    (alone,) = harness.broker.recorder._holdings([inner], facts_now)
    assert (alone.job, alone.used) == (2, 50 * MiB)
