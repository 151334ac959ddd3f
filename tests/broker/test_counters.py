"""What the broker counts: only what is on disk, each thing once, and nothing ever gets less."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from sublet.broker.broker import Broker
from sublet.broker.counters import Counters, ending
from sublet.broker.ledger import Ledger
from sublet.domain.job import Outcome, Program
from sublet.domain.memory import Exactly
from sublet.home import Home
from sublet.reactor import Reactor
from sublet.units import MiB
from sublet.wire import messages
from sublet.wire.metrics import STATES, Counts, Metrics
from support.client import Client
from support.fakes import FakeClock, FakeProbe, PuppetBackend
from support.jobs import device, job

SPEC = replace(
    job().spec,
    client=None,
    program=Program("command", b"/bin/true"),
    memory=Exactly(600 * MiB),
)


class BrokerHarness:
    """A broker on a device for two of its jobs."""

    def __init__(self, root: Path) -> None:
        home = Home(root)
        home.make()
        self.reactor = Reactor()
        self.backend = PuppetBackend()
        self.clock = FakeClock()
        probe = FakeProbe(device(capacity=2048 * MiB))
        ledger = Ledger.open(home.ledger)
        self.broker = Broker(self.reactor, home, ledger, probe, self.clock, self.backend)

    def ask(self, request: messages.Request) -> list[messages.Reply]:
        client = Client(self.reactor)
        self.broker.requests.handle(client.connection, request)
        self.broker.settle()
        heard = client.heard()
        client.close()
        return heard

    def metrics(self) -> Metrics:
        (reply,) = self.ask(messages.AskMetrics())
        assert isinstance(reply, Metrics)
        return reply


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[BrokerHarness]:
    made = BrokerHarness(tmp_path / "home")
    yield made
    made.broker.close()
    made.reactor.close()


def test_jobs_leases_and_endings_are_counted(harness: BrokerHarness) -> None:
    before = harness.metrics()
    assert before.jobs == dict.fromkeys(STATES, 0)
    assert not any(before.counts.finished.values())
    harness.ask(messages.Submit(SPEC, "1", (0, 1, 2)))
    harness.clock.tick += 20.0
    harness.clock.at += 20.0
    running = harness.metrics()
    assert (running.counts.submitted, running.counts.granted) == (3, 2)
    assert running.jobs == dict.fromkeys(STATES, 0) | {"starting": 2, "waiting": 1}
    assert running.longest_wait == 20.0
    assert running.devices[0].leased > 1200 * MiB
    harness.backend.begin("1.1")
    harness.backend.end("1.1")
    harness.broker.settle()
    harness.ask(messages.JobAction("cancel", (3,)))
    after = harness.metrics()
    assert after.counts.granted == 3
    assert after.counts.finished["done"] == after.counts.attempts["done"] == 1
    assert sum(after.counts.starts.values()) == 1
    assert sum(after.counts.waits.buckets) == 3
    assert after.counts.waits.total == pytest.approx(20.0)


def test_what_the_disk_did_not_take_is_not_counted(harness: BrokerHarness) -> None:
    harness.broker.work.ledger._db.execute("PRAGMA query_only = 1")
    harness.ask(messages.Submit(SPEC, "1"))
    assert harness.metrics().counts.submitted == 0
    harness.broker.work.ledger._db.execute("PRAGMA query_only = 0")
    harness.ask(messages.Submit(SPEC, "1"))
    assert harness.metrics().counts.submitted == 1


def test_counters_go_on_with_the_next_broker(tmp_path: Path) -> None:
    first = BrokerHarness(tmp_path / "home")
    first.ask(messages.Submit(SPEC, "1", (0, 1, 2)))
    counted = first.metrics().counts
    first.broker.close()
    first.reactor.close()
    second = BrokerHarness(tmp_path / "home")
    assert second.metrics().counts == counted
    assert counted.submitted == 3
    second.ask(messages.Submit(SPEC, "2"))
    assert second.metrics().counts.submitted == 4
    second.broker.close()
    second.reactor.close()


@pytest.mark.parametrize("kept", ["", "{", "[]", '{"waits": {"buckets": [1]}, "submitted": -1.5}'])
def test_counts_that_make_no_sense_begin_anew(kept: str) -> None:
    assert Counters(kept).counts == Counts.none()


def test_counts_of_another_version_keep_what_is_known() -> None:
    kept = Counters().text().replace('"submitted":0', '"submitted":7').replace(',"lost":0', "")
    counts = Counters(kept.replace('"done":0', '"done":2')).counts
    assert (counts.submitted, counts.finished["done"]) == (7, 2)
    assert set(counts.finished) == set(Counts.none().finished)


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (Outcome("exited", 0), "done"),
        (Outcome("exited", 1), "failed"),
        (Outcome("signalled", 139), "failed"),
        (Outcome("signalled", 130, by_user=True), "stopped"),
        (Outcome("lease exceeded", 1), "out_of_memory"),
        (Outcome("device full", 1), "out_of_memory"),
        (Outcome("time limit", 143), "time_limit"),
        (Outcome("preempted", 143), "preempted"),
        (Outcome("cancelled", 143), "cancelled"),
        (Outcome("dependency", 1), "dependency_failed"),
        (Outcome("stopped", 143), "stopped"),
        (Outcome("lost", 1), "lost"),
    ],
)
def test_each_ending_has_a_word(outcome: Outcome, word: str) -> None:
    assert ending(outcome) == word
