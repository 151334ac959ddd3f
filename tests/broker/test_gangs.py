"""Gangs in the broker: a backend without processes, and tasks that end as the test says."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sublet.backends.backend import Ending
from sublet.backends.local.cluster_environment import cluster_environment
from sublet.broker.broker import Broker
from sublet.broker.ledger import Ledger
from sublet.domain.device import Device
from sublet.domain.job import Finished, Job, JobSpec, Process, Program, Role, Waiting
from sublet.domain.memory import Exactly
from sublet.home import Home
from sublet.keeper import process_tree
from sublet.reactor import Reactor
from sublet.units import MiB
from sublet.wire import messages
from support.client import Client
from support.fakes import FakeClock, FakeProbe, PuppetBackend
from support.jobs import device, job
from support.sandbox import wait_for

WORKERS: tuple[tuple[Role, int], ...] = (("worker", 2),)
SERVED: tuple[tuple[Role, int], ...] = (("chief", 1), ("worker", 1), ("ps", 1))


def wanted(memory: int = 100, retries: int = 0) -> JobSpec:
    return msgspec.structs.replace(
        job().spec,
        client=None,
        program=Program("script", b"/home/someone/train.py", (), (), b"/usr/bin/python3"),
        memory=Exactly(memory * MiB),
        retries=retries,
    )


class Machine:
    """A broker over a backend that the test moves."""

    def __init__(self, home: Home, *devices: Device) -> None:
        self.home = home
        self.devices = devices or (device(capacity=2048 * MiB),)
        self.backend = PuppetBackend()
        self.clock = FakeClock()
        self.open()

    def open(self) -> None:
        self.reactor = Reactor()
        ledger, probe = Ledger.open(self.home.ledger), FakeProbe(*self.devices)
        self.broker = Broker(self.reactor, self.home, ledger, probe, self.clock, self.backend)
        self.client = Client(self.reactor)
        self.broker.settle()

    def close(self) -> None:
        self.client.close()
        self.broker.close()
        self.reactor.close()

    def launch(
        self,
        roles: tuple[tuple[Role, int], ...] = WORKERS,
        spec: JobSpec | None = None,
        owner: Process | None = None,
    ) -> messages.Reply:
        request = messages.Submit(spec or wanted(), f"{id(object())}", roles=roles, owner=owner)
        return self.ask(request)

    def ask(self, request: messages.Request) -> messages.Reply:
        self.broker.requests.handle(self.client.connection, request)
        self.broker.settle()
        (reply,) = self.client.heard()
        return reply

    def begin(self, *attempts: str) -> None:
        for attempt in attempts:
            self.backend.begin(attempt)
        self.broker.settle()

    def end(self, attempt: str, status: int = 0) -> None:
        """A task ends of itself."""
        self.backend.end(attempt, Ending(status))
        self.broker.settle()

    def obey(self) -> None:
        """All tasks that were asked to end do so."""
        for attempt in list(self.backend.stopping):
            self.backend.end(attempt)
        self.broker.settle()

    def job(self, number: int) -> Job:
        return self.broker.work.job(number)

    def code(self, number: int) -> int:
        state = self.job(number).state
        assert isinstance(state, Finished)
        return state.outcome.code

    @property
    def live(self) -> list[str]:
        return sorted(self.backend.live)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    home = Home(tmp_path / "home")
    home.make()
    made = Machine(home)
    yield made
    made.close()


def test_a_gang_is_one_job_for_each_task_and_all_start_together(machine: Machine) -> None:
    assert machine.launch(SERVED) == messages.Queued((1, 2, 3))
    assert machine.live == ["1.1", "2.1", "3.1"]
    assert machine.job(3).name == "train.py[ps 0]"
    assert machine.job(3).spec.device == "cpu"


def test_a_gang_that_does_not_fit_beside_others_waits_whole(machine: Machine) -> None:
    machine.ask(messages.Submit(wanted(1500), "alone"))
    machine.launch()
    assert machine.live == ["1.1"]
    reasons = {machine.broker.snapshots.row(number).reason for number in (2, 3)}
    (reason,) = reasons
    assert reason.startswith("its 2 tasks need ")
    machine.end("1.1")
    assert machine.live == ["2.1", "3.1"]


@pytest.mark.parametrize(
    ("roles", "memory", "words"),
    [
        ((("worker", 4),), 800, "at the same time"),
        ((("ps", 1),), 100, "needs a worker or a chief"),
        ((("chief", 2),), 100, "one chief at most"),
        ((("worker", 65),), 20, "too large"),
        ((("worker", 1), ("worker", 1)), 100, "names each role once"),
    ],
)
def test_what_can_be_no_gang_is_refused_at_once(
    machine: Machine, roles: tuple[tuple[Role, int], ...], memory: int, words: str
) -> None:
    reply = machine.launch(roles, wanted(memory))
    assert isinstance(reply, messages.Refused)
    assert words in reply.message
    assert not machine.broker.state.jobs()


def test_the_same_request_sent_twice_makes_one_gang(machine: Machine) -> None:
    request = messages.Submit(wanted(), "token", roles=WORKERS)
    assert machine.ask(request) == machine.ask(request) == messages.Queued((1, 2))


def test_the_first_failure_ends_the_others_and_is_named(machine: Machine) -> None:
    machine.launch()
    machine.begin("1.1", "2.1")
    machine.end("2.1", 3 << 8)
    assert machine.backend.stopping == {"1.1": "worker 1 (#2): exit code 3"}
    machine.obey()
    assert (machine.code(2), machine.code(1)) == (3, 128 + 15)
    assert not machine.live


def test_what_serves_a_chief_that_is_done_ends_and_has_not_failed(machine: Machine) -> None:
    machine.launch(SERVED)
    machine.begin("1.1", "2.1", "3.1")
    machine.end("1.1")
    assert set(machine.backend.stopping) == {"2.1", "3.1"}
    machine.end("2.1", 1 << 8)  # It has lost its chief, before it was told to end.
    machine.obey()
    assert [machine.code(number) for number in (1, 2, 3)] == [0, 0, 0]


def test_a_restart_starts_all_again_with_those_that_were_done(machine: Machine) -> None:
    """And at most as often as was asked for, whichever task fails."""
    machine.launch(spec=wanted(retries=1))
    machine.begin("1.1", "2.1")
    before = machine.job(1).lease
    machine.end("1.1")
    machine.end("2.1", 256)
    assert isinstance(machine.job(1).state, Waiting)
    assert not machine.live
    machine.clock.tick += 3600.0
    machine.broker.work.touch_waiting()
    machine.broker.settle()
    assert machine.live == ["1.2", "2.2"]
    after = machine.job(1).lease
    assert before is not None
    assert after is not None
    assert machine.job(1).spec.surroundings.environ == {b"HOME": b"/home/someone"}
    machine.end("1.2", 256)
    machine.obey()
    assert (machine.code(1), machine.code(2)) == (1, 143)


def test_a_task_whose_worker_never_ran_is_started_again_under_its_lease(machine: Machine) -> None:
    """Nobody else notices, and nobody else gets its room."""
    machine.launch(spec=wanted(700))
    machine.ask(messages.Submit(wanted(400), "small"))
    machine.begin("1.1")
    machine.backend.fail_to_begin("2.1")
    machine.broker.settle()
    assert machine.live == ["1.1", "2.2"]
    assert machine.backend.stopping == {}


def test_the_next_broker_starts_the_tasks_that_were_granted_and_not_started(
    machine: Machine,
) -> None:
    machine.launch()
    lease = machine.job(2).lease
    del machine.backend.live["2.1"]  # The broker was killed before it ordered this one.
    machine.close()
    machine.open()
    assert machine.live == ["1.1", "2.2"]
    assert machine.job(2).lease == lease


def test_where_a_port_was_taken_meanwhile_the_whole_gang_gets_others(machine: Machine) -> None:
    machine.launch()
    lease = machine.job(2).lease
    assert lease is not None
    del machine.backend.live["2.1"]
    machine.close()
    with socket.socket() as other:
        other.bind(("", lease.ports[1]))
        other.listen()
        machine.open()
        assert set(machine.backend.stopping) == {"1.1"}
        machine.obey()
        assert machine.live == ["1.2", "2.2"]
        ports = [one.lease.ports for one in machine.backend.live.values() if one.lease]
        assert ports[0] == ports[1] != lease.ports


def test_cancelling_any_task_cancels_the_gang(machine: Machine) -> None:
    machine.launch()
    machine.ask(messages.JobAction("cancel", (2,)))
    assert set(machine.backend.stopping) == {"1.1", "2.1"}
    machine.obey()
    assert not machine.broker.state.jobs()


def test_a_gang_that_waits_is_paused_resumed_and_cancelled_as_one(machine: Machine) -> None:
    machine.ask(messages.Submit(wanted(1700), "alone"))
    machine.launch()
    machine.ask(messages.JobAction("pause", (2,)))
    machine.end("1.1")
    assert not machine.live
    machine.ask(messages.JobAction("resume", (3,)))
    assert machine.live == ["2.1", "3.1"]


def test_a_gang_ends_with_the_command_that_launched_it(machine: Machine) -> None:
    command = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = Process(command.pid, process_tree.start_time(command.pid) or 0)
    machine.launch(owner=owner)
    machine.begin("1.1", "2.1")
    machine.close()
    machine.open()  # The next broker knows its command, too.
    command.kill()
    command.wait()
    assert command.stdin is not None
    command.stdin.close()

    def stopped() -> bool:
        machine.reactor.run_once()
        machine.broker.settle()
        return set(machine.backend.stopping) == {"1.1", "2.1"}

    wait_for(stopped, "the tasks are ended")


def test_each_task_is_told_the_cluster_and_its_place(machine: Machine) -> None:
    roles: tuple[tuple[Role, int], ...] = (("chief", 1), ("worker", 1), ("ps", 1), ("evaluator", 1))
    machine.launch(roles)
    jobs = [machine.job(number) for number in (1, 2, 3, 4)]
    configs = [
        msgspec.json.decode(cluster_environment(one, dict(os.environ))["TF_CONFIG"]) for one in jobs
    ]
    lease = jobs[0].lease
    assert lease is not None
    at = [f"127.0.0.1:{port}" for port in lease.ports]
    cluster = {"chief": at[:1], "worker": at[1:2], "ps": at[2:3]}
    assert all(config["cluster"] == cluster for config in configs)
    assert [config["task"] for config in configs] == [
        {"type": role, "index": 0} for role, _ in roles
    ]


def test_tasks_are_spread_over_the_cards_and_parameter_servers_keep_off_them(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path / "home")
    home.make()
    names = ("cpu", "gpu0", "gpu1")
    machine = Machine(home, *(device(name, 8192 * MiB) for name in names))
    machine.launch((("worker", 2), ("ps", 1)))
    leases = [machine.job(number).lease for number in (1, 2, 3)]
    assert [one.device for one in leases if one] == ["gpu0", "gpu1", "cpu"]
    machine.close()


def test_settings_that_the_user_has_made_stay(machine: Machine) -> None:
    machine.launch(SERVED)
    added = cluster_environment(machine.job(1), {"GRPC_FAIL_FAST": "0", "TF_CONFIG": "{}"})
    assert "GRPC_FAIL_FAST" not in added
    assert added["TF_CONFIG"] != "{}"
