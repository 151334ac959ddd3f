"""Leases that grow and shrink: a real broker and ledger, workers of files, a clock by hand."""

import os
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from sublet.broker.broker import Broker
from sublet.broker.ledger import Ledger
from sublet.domain.job import Job, JobSpec, Running, Waiting
from sublet.domain.lease import Lease
from sublet.domain.memory import Auto, Between, Exactly, MemoryAsk
from sublet.formats import attempt_files, fence_file, shares
from sublet.formats.lease import LeaseTerms
from sublet.formats.shares import Share
from sublet.home import Home
from sublet.inside import first_share
from sublet.inside.measure import UsageWriter
from sublet.keeper import process_tree
from sublet.reactor import Reactor
from sublet.units import GiB, MiB, format_bytes
from sublet.wire import messages
from support.fakes import FakeClock, FakeProbe, PuppetBackend
from support.jobs import device, job

CAPACITY = 4 * GiB
RANGE = Between(256 * MiB, 3 * GiB)


class Processes:
    """Which processes live; their numbers are above those that the kernel gives."""

    def __init__(self) -> None:
        self._living: set[int] = set()
        self._next = 1 << 23

    def start(self) -> int:
        self._next += 1
        self._living.add(self._next)
        return self._next

    def end(self, pid: int) -> None:
        self._living.discard(pid)

    def start_time(self, pid: int) -> int | None:
        return 1 if pid in self._living else None


class Worker:
    """A process of a program: a pool with a limit, which others raise through FIFOs. Its share is
    in the record of the attempt."""

    def __init__(
        self, directory: Path, lease: Lease, clock: FakeClock, processes: Processes
    ) -> None:
        self.directory = str(directory)
        self.clock = clock
        self.lease = lease
        self.limit = 0
        self.pool = 0
        self.waits = 0
        """What an allocation that does not fit needs."""
        self._processes = processes
        self.pid = processes.start()
        self._dumps = 0
        self._made = 0
        self._fifos: dict[str, int] = {}
        directory.mkdir(exist_ok=True)
        self.begin()

    @property
    def total(self) -> int:
        return attempt_files.read_ceiling(self.directory) or self.lease.ceiling

    def begin(self) -> None:
        """Take a share to begin with; without one it goes on waiting."""
        with shares.locked(self.directory) as table:
            others = table.others(self.pid)
            self.limit = first_share._first(self.total, others)
            table.put(Share(self.pid, 1, self.limit))
        if self.lease.elastic or others:
            self.arm()

    def arm(self) -> None:
        while len(self._fifos) < 3:
            path = attempt_files.raise_fifo(self.directory, self.pid, self._made)
            os.mkfifo(path)
            self._fifos[path] = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            self._made += 1

    def allocate(self, amount: int) -> None:
        """What fits is taken; else the allocator leaves a file, and waits."""
        self.waits = amount
        self.try_again()

    def try_again(self) -> None:
        if self.waits and self.pool + self.waits <= self.limit:
            self.pool += self.waits
            self.waits = 0
        elif self.waits:
            self._dumps += 1
            stamp = int(self.clock.wall() * 1e6) + self._dumps
            prefix = attempt_files.dump_prefix(self.directory, self.pid)
            Path(f"{prefix}_bfc.{stamp}").touch()

    def hear(self) -> bool:
        """Take what has come through the FIFOs, without any Python code of the program."""
        heard = False
        for path, descriptor in list(self._fifos.items()):
            try:
                self.limit = int.from_bytes(os.read(descriptor, 8), "little")
            except BlockingIOError:
                continue
            heard = True
            os.close(self._fifos.pop(path))
            os.unlink(path)
        if heard:
            self.try_again()
        return heard

    def confirm(self, limit: int) -> None:
        """Set a limit, as far as the pool allows it, and note it as its share."""
        with shares.locked(self.directory) as table:
            self.hear()
            mine = table.get(self.pid)
            assert mine is not None
            self.limit = max(min(limit, mine.limit), -(-self.pool // MiB) * MiB)
            table.put(mine._replace(limit=self.limit))
        self.arm()

    def give_up(self) -> None:
        """The allocation has waited for too long."""
        self.waits = 0

    def end(self) -> None:
        """The process is killed: its share is free."""
        self._processes.end(self.pid)
        for descriptor in self._fifos.values():
            os.close(descriptor)
        self._fifos = {}

    def close(self) -> None:
        self.end()
        shutil.rmtree(self.directory, ignore_errors=True)


class Harness:
    """A broker on a device of 4 GiB whose attempts are moved by the test."""

    def __init__(self, root: Path, on: str = "cpu") -> None:
        self.on = on
        self.home = Home(root)
        self.home.make()
        self.clock = FakeClock()
        self.backend = PuppetBackend()
        self.workers: dict[int, Worker] = {}
        self.children: dict[int, list[Worker]] = {}
        self.processes = Processes()
        self._start_time = shares.start_time
        shares.start_time = self.processes.start_time
        self.submitted = 0
        self.open()

    def open(self) -> None:
        self.reactor = Reactor()
        self.broker = Broker(
            self.reactor,
            self.home,
            Ledger.open(self.home.ledger),
            FakeProbe(device(self.on, CAPACITY)),
            self.clock,
            self.backend,
        )
        self.turn()

    def kill(self) -> None:
        """End the broker between two turns, and start the next one."""
        self.broker.work.ledger.close()
        self.reactor.close()
        self.open()

    def turn(self) -> None:
        """Have the broker hear what has happened, and act."""
        self.broker.reactor.call_later(0.0, lambda: None)
        self.reactor.run_once()
        self.broker.settle()

    def start(self, memory: MemoryAsk = RANGE, service: str = "guaranteed") -> int:
        """Submit a job; if there is room, it runs."""
        self.submitted += 1
        asked = {"memory": memory, "service": service, "device": self.on}
        spec: JobSpec = replace(job().spec, client=None, **asked)
        request = messages.Submit(spec, f"{self.submitted}")
        self.broker.requests.handle(_Nobody(), request)  # type: ignore[arg-type]
        self.broker.settle()
        self.begin()
        return self.submitted

    def begin(self) -> None:
        """All who were granted a lease and have not begun begin now."""
        for attempt_id, one in list(self.backend.live.items()):
            if attempt_id not in self.backend.begun:
                held = self.broker.state[one.id].lease
                assert held is not None
                directory = self.home.runs / attempt_id
                self.workers[one.id] = Worker(directory, held, self.clock, self.processes)
                self.backend.begin(attempt_id)
        self.broker.settle()

    def fork(self, number: int) -> Worker:
        """Another process of this program starts TensorFlow."""
        parent = self.workers[number]
        child = Worker(Path(parent.directory), parent.lease, self.clock, self.processes)
        self.children.setdefault(number, []).append(child)
        return child

    def of(self, number: int) -> list[Worker]:
        """The processes of this program."""
        return [self.workers[number], *self.children.get(number, ())]

    def end(self, number: int) -> None:
        """Its program has ended."""
        for child in self.children.pop(number, ()):
            child.end()
        self.workers.pop(number).close()
        self.backend.end(self.broker.state[number].attempt_id)
        self.broker.settle()
        self.begin()

    def lease(self, number: int) -> Lease:
        held = self.broker.state[number].lease
        assert held is not None
        return held

    def job(self, number: int) -> Job:
        return self.broker.state[number]

    @property
    def free(self) -> int:
        (capacity,) = [one for one in self.broker.usage.capacities() if one.within is None]
        return capacity.free

    def close(self) -> None:
        for number in list(self.workers):
            for worker in self.of(number):
                worker.close()
        self.broker.close()
        self.reactor.close()
        shares.start_time = self._start_time


class _Nobody:
    """A client's connection that takes every answer."""

    job: int | None = None

    def reply(self, message: messages.Reply) -> None:
        """Nobody listens."""


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    made = Harness(tmp_path)
    yield made
    made.close()


def beside(lease: Lease) -> int:
    return lease.charge - lease.ceiling


def test_an_allocation_that_does_not_fit_raises_the_lease(harness: Harness) -> None:
    number = harness.start()
    worker = harness.workers[number]
    worker.allocate(300 * MiB)
    assert worker.waits
    harness.turn()
    assert worker.hear()
    assert not worker.waits
    lease = harness.lease(number)
    assert lease.ceiling == worker.limit == (256 + 128) * MiB
    assert harness.free == CAPACITY - lease.ceiling - beside(lease)
    assert lease.size_text == "256 MiB, grew to 384 MiB"


def test_a_need_that_comes_while_a_raise_is_on_its_way_is_heard(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program has read of its new ceiling, and filled it, before the raise is sent."""
    number = harness.start()
    worker = harness.workers[number]
    nested = harness.broker.nested_leases
    settle = nested.settle

    def settle_slowly(job: int | None) -> None:
        settle(job)
        named = attempt_files.read_ceiling(worker.directory)
        if job == number and named is not None and worker.limit < named:
            worker.limit = named
            harness.clock.at += 0.05
            worker.try_again()
            worker.allocate(200 * MiB)
            harness.clock.at += 0.05

    worker.allocate(300 * MiB)
    monkeypatch.setattr(nested, "settle", settle_slowly)
    harness.turn()
    assert worker.waits
    monkeypatch.undo()
    worker.hear()
    worker.arm()
    harness.turn()
    assert worker.hear()
    assert not worker.waits


def test_a_larger_need_is_met_in_steps_that_double(harness: Harness) -> None:
    number = harness.start()
    worker = harness.workers[number]
    worker.allocate(1000 * MiB)
    sizes = []
    while worker.waits:
        harness.turn()
        assert worker.hear()
        worker.arm()
        sizes.append(worker.limit // MiB)
    assert sizes == [384, 640, 1280]


def test_who_can_be_reached_only_once_more_gets_all_there_is(harness: Harness) -> None:
    """Its interpreter's lock is held: it offers no more FIFOs until the allocation is done."""
    number = harness.start()
    worker = harness.workers[number]
    worker.allocate(2900 * MiB)
    for _ in range(3):
        harness.turn()
        assert worker.hear()
    assert not worker.waits
    assert worker.limit == 3 * GiB


def test_what_was_not_needed_goes_back_when_the_worker_confirms_and_not_before(
    harness: Harness,
) -> None:
    number = harness.start()
    worker = harness.workers[number]
    worker.allocate(1000 * MiB)
    while worker.waits:
        harness.turn()
        worker.hear()
    granted = harness.lease(number).ceiling
    harness.turn()
    assert harness.lease(number).ceiling == granted > 1000 * MiB
    worker.confirm(256 * MiB)
    harness.turn()
    assert harness.lease(number).ceiling == worker.limit == 1000 * MiB
    assert attempt_files.read_ceiling(worker.directory) == 1000 * MiB
    assert harness.lease(number).size_text == "256 MiB, grew to 1000 MiB"


def test_a_raise_that_is_on_its_way_is_no_room_that_can_go_back(harness: Harness) -> None:
    number = harness.start()
    worker = harness.workers[number]
    worker.allocate(400 * MiB)
    harness.turn()
    worker.hear()  # Too little: it waits on.
    assert worker.waits
    harness.turn()
    harness.turn()
    worker.hear()
    assert worker.limit <= harness.lease(number).ceiling


def test_what_the_user_has_said_is_hard(harness: Harness) -> None:
    number = harness.start(Exactly(512 * MiB))
    worker = harness.workers[number]
    worker.arm()
    worker.allocate(600 * MiB)
    harness.turn()
    assert not worker.hear()
    assert harness.lease(number).ceiling == 512 * MiB


def test_growth_stops_at_the_end_of_the_range(harness: Harness) -> None:
    number = harness.start(Between(256 * MiB, 300 * MiB))
    worker = harness.workers[number]
    worker.allocate(301 * MiB)
    for _ in range(3):
        harness.turn()
        worker.hear()
    assert worker.waits
    assert harness.lease(number).ceiling == 300 * MiB


def test_without_room_it_waits_and_whoever_ends_saves_it(harness: Harness) -> None:
    other = harness.start(Exactly(3 * GiB))
    number = harness.start(Between(512 * MiB, 2 * GiB))
    worker = harness.workers[number]
    worker.allocate(900 * MiB)
    for _ in range(3):
        harness.turn()
        worker.hear()
    assert worker.waits
    harness.end(other)
    while worker.waits:
        harness.turn()
        assert worker.hear()
        worker.arm()
    assert harness.lease(number).ceiling >= 900 * MiB


class Fence:
    """The fence of a program: what it lacks is known, and its bound is in a file."""

    def __init__(self, worker: Worker, lease: Lease) -> None:
        self.directory = worker.directory
        most = lease.charge + lease.most - lease.ceiling
        fence_file.create(worker.directory, "0" * 16, lease.charge, most, lease.most)
        self._lacks = 0

    @property
    def bound(self) -> int:
        bound = fence_file.read_bound(self.directory)
        assert bound is not None
        return bound

    def lack(self, amount: int, pid: int | None = None) -> Path:
        self._lacks += 1
        path = Path(self.directory) / f"lack-{pid or os.getpid()}-{self._lacks}-{amount}"
        path.touch()
        return path

    def hold(self, amount: int) -> None:
        start = process_tree.start_time(os.getpid())
        assert start is not None
        with (Path(self.directory) / fence_file.NAME).open("r+b") as file:
            file.seek(4096)
            file.write(struct.pack("<2Q", start << 22 | os.getpid(), amount))


def test_what_a_fence_lacks_raises_lease_and_bound_by_just_that(harness: Harness) -> None:
    """Both at once, whatever TensorFlow's pool confirms later; and a lack is answered once."""
    number = harness.start()
    worker = harness.workers[number]
    fence = Fence(worker, harness.lease(number))
    fence.lack(300 * MiB - 1)
    harness.turn()
    lease = harness.lease(number)
    assert lease.ceiling == (256 + 300) * MiB
    assert fence.bound == lease.charge
    assert not worker.hear()
    worker.confirm(256 * MiB)
    for _ in range(3):
        harness.turn()
    assert harness.lease(number) == lease
    harness.kill()
    assert harness.lease(number).ceiling >= lease.ceiling
    assert fence.bound == harness.lease(number).charge


def test_what_the_pool_gives_back_is_not_what_the_fence_knows_to_be_held(harness: Harness) -> None:
    number = harness.start()
    worker = harness.workers[number]
    fence = Fence(worker, harness.lease(number))
    worker.allocate(300 * MiB)
    harness.turn()
    worker.hear()
    fence.lack(200 * MiB)
    harness.turn()
    raised = harness.lease(number)
    assert raised.ceiling == (256 + 128 + 200) * MiB
    fence.hold(raised.charge - 50 * MiB)
    worker.confirm(300 * MiB)
    harness.turn()
    lease = harness.lease(number)
    assert lease.ceiling == raised.ceiling - 50 * MiB
    assert fence.bound == lease.charge


def test_who_does_not_wait_any_more_gets_nothing(harness: Harness) -> None:
    """A fence that has given up, or whose process was killed."""
    other = harness.start(Exactly(3 * GiB))
    number = harness.start(Between(512 * MiB, 2 * GiB))
    fence = Fence(harness.workers[number], harness.lease(number))
    gone = fence.lack(GiB)
    harness.turn()
    assert harness.lease(number).ceiling == 512 * MiB
    gone.unlink()
    fence.lack(GiB, pid=4_000_000)
    harness.end(other)
    harness.turn()
    assert harness.lease(number).ceiling == 512 * MiB
    assert fence.bound == harness.lease(number).charge


def test_a_broker_that_was_killed_before_it_moved_the_bound_is_made_good(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = harness.start()
    fence = Fence(harness.workers[number], harness.lease(number))
    before, lack = fence.bound, fence.lack(300 * MiB)
    with monkeypatch.context() as patch:
        patch.setattr(Broker, "_perform", lambda *_: None)
        harness.turn()
    assert fence.bound == before
    lack.unlink()
    harness.kill()
    assert fence.bound == harness.lease(number).charge == before + 300 * MiB


def test_an_allocation_that_has_given_up_is_forgotten(harness: Harness) -> None:
    other = harness.start(Exactly(3 * GiB))
    number = harness.start(Between(512 * MiB, 2 * GiB))
    worker = harness.workers[number]
    worker.allocate(1500 * MiB)
    harness.turn()
    worker.hear()
    harness.turn()
    before = harness.lease(number).ceiling
    worker.give_up()
    harness.clock.tick += 20.0
    harness.clock.at += 20.0
    harness.end(other)
    harness.turn()
    assert harness.lease(number).ceiling == before
    assert not harness.broker.elastic_leases.waits


def test_opportunistic_jobs_are_stopped_for_a_guaranteed_one_that_needs_more(
    harness: Harness,
) -> None:
    guest = harness.start(Exactly(3 * GiB), "opportunistic")
    number = harness.start(Between(512 * MiB, 2 * GiB))
    worker = harness.workers[number]
    worker.allocate(900 * MiB)
    harness.turn()
    worker.hear()
    harness.turn()
    attempt_id = harness.job(guest).attempt_id
    assert harness.backend.stopping == {attempt_id: "preempted"}


def test_a_raise_that_cannot_be_written_is_not_made_and_is_tried_again(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = harness.start()
    worker = harness.workers[number]
    worker.allocate(300 * MiB)

    def full() -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(harness.broker.work.ledger, "commit", full)
        harness.turn()
        assert not worker.hear()
        assert harness.lease(number).ceiling == 256 * MiB
    harness.broker.work.changed = True
    harness.turn()
    assert worker.hear()
    assert not worker.waits


def test_the_next_broker_answers_an_allocation_that_waits(harness: Harness) -> None:
    number = harness.start()
    worker = harness.workers[number]
    worker.allocate(300 * MiB)
    harness.kill()
    assert worker.hear()
    assert not worker.waits
    assert harness.lease(number).ceiling == worker.limit


def test_the_next_broker_names_a_raise_that_reached_nobody(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = harness.start()
    worker = harness.workers[number]
    worker.allocate(300 * MiB)
    with monkeypatch.context() as patch:
        # The broker is killed between the commit and what follows from it.
        patch.setattr(Broker, "_perform", lambda *_: None)
        harness.turn()
    assert not worker.hear()
    harness.kill()
    assert attempt_files.read_ceiling(worker.directory) == harness.lease(number).ceiling
    assert worker.hear()
    assert not worker.waits


def usage(worker: Worker, lease: Lease, peak: int) -> None:
    terms = LeaseTerms(
        1, 1, "t", "cpu", "cpu", None, lease.ceiling, CAPACITY, worker.directory, False, lease.most
    )
    written = UsageWriter(terms, worker.pid)
    written.note(runtime_started_ns=1, limit=lease.ceiling, current=peak, peak=peak)


def grown(harness: Harness, least: int) -> int:
    """A job whose lease has grown to 2.5 GiB at least, for a need that has passed."""
    number = harness.start(Between(least, CAPACITY - 512 * MiB))
    worker = harness.workers[number]
    worker.allocate(5 * GiB // 2)
    while worker.waits:
        harness.turn()
        assert worker.hear()
    worker.pool = 0
    return number


def pass_time(harness: Harness, seconds: int) -> None:
    for _ in range(0, seconds, 2):
        harness.clock.tick += 2.0
        harness.clock.at += 2.0
        harness.broker.elastic_leases.trim(harness.broker.state.waits)


@pytest.mark.parametrize("fenced", [0, 500 * MiB])
def test_settled_programs_give_back_what_they_do_not_need_if_somebody_waits(
    harness: Harness, fenced: int
) -> None:
    """What they hold beside TensorFlow's pool is needed, too."""
    number = harness.start(Auto())
    worker = harness.workers[number]
    given = harness.lease(number).ceiling
    if fenced:
        Fence(worker, harness.lease(number)).hold(fenced + beside(harness.lease(number)))
    usage(worker, harness.lease(number), 200 * MiB)
    pass_time(harness, 60)
    assert attempt_files.read_ceiling(worker.directory) in (None, given)

    waiting = harness.start(Exactly(CAPACITY - given))
    assert isinstance(harness.job(waiting).state, Waiting)
    pass_time(harness, 4)
    asked = attempt_files.read_ceiling(worker.directory)
    assert asked is not None
    assert 200 * MiB < asked < 300 * MiB or asked == fenced
    harness.turn()
    assert isinstance(harness.job(waiting).state, Waiting)

    worker.confirm(asked)
    harness.turn()
    harness.begin()
    assert isinstance(harness.job(waiting).state, Running)
    assert harness.lease(number).size_text.startswith(f"{format_bytes(given)}, of which it kept ")


@pytest.mark.parametrize("least", [64 * MiB, GiB])
def test_a_program_gives_back_what_it_grew_by_and_keeps_the_least_that_its_user_named(
    harness: Harness, least: int
) -> None:
    number = grown(harness, least)
    worker = harness.workers[number]
    usage(worker, harness.lease(number), 200 * MiB)
    harness.start(Exactly(2 * GiB))
    pass_time(harness, 90)
    asked = attempt_files.read_ceiling(worker.directory)
    assert asked is not None
    assert asked == GiB if least == GiB else 200 * MiB < asked < 400 * MiB


def test_a_program_is_not_asked_for_what_earlier_runs_of_it_needed(harness: Harness) -> None:
    """It may be reading its data, and others would have the room when it begins."""
    first = grown(harness, 64 * MiB)
    usage(harness.workers[first], harness.lease(first), GiB)
    harness.backend.end(harness.job(first).attempt_id)  # Its files are still there.
    harness.turn()
    harness.workers.pop(first).close()
    number = grown(harness, 64 * MiB)
    worker = harness.workers[number]
    usage(worker, harness.lease(number), 200 * MiB)
    harness.start(Exactly(2 * GiB))
    pass_time(harness, 90)
    asked = attempt_files.read_ceiling(worker.directory)
    assert asked is not None
    assert GiB < asked < 5 * GiB // 2


def test_a_lease_on_a_gpu_is_not_trimmed(tmp_path: Path) -> None:
    """XLA tunes kernels with memory that it does not wait for, so it could not grow in time."""
    harness = Harness(tmp_path, "gpu0")
    try:
        number = harness.start(Between(2 * GiB, 2 * GiB + 256 * MiB))
        worker = harness.workers[number]
        usage(worker, harness.lease(number), 200 * MiB)
        waiting = harness.start(Exactly(GiB))
        pass_time(harness, 90)
        assert isinstance(harness.job(waiting).state, Waiting)
        assert attempt_files.read_ceiling(worker.directory) in (None, 2 * GiB)
    finally:
        harness.close()


def test_a_process_that_asks_ahead_of_need_is_given_half_of_what_is_free(harness: Harness) -> None:
    """At most, each time that it asks; nobody is told of it."""
    number = harness.start(Between(256 * MiB, 8 * GiB))
    worker = harness.workers[number]
    for asked, most in ((100, 356), (100, 456), (10_000, 2300)):
        harness.clock.at += 1.0
        now = harness.clock.wall()
        path = attempt_files.ahead_file(worker.directory, worker.pid, asked * MiB, now)
        Path(path).touch()
        harness.turn()
        assert worker.hear()
        assert worker.limit <= most * MiB
        assert worker.limit == harness.lease(number).ceiling
        harness.broker.elastic_leases._look_at_all()  # As where the system has no watchers.
        harness.turn()
        assert not worker.hear()  # It was answered.
        os.unlink(path)
    assert worker.limit > GiB
    assert harness.broker.elastic_leases.waits is False


def test_what_cannot_be_a_ceiling_is_not_taken_for_one(tmp_path: Path) -> None:
    terms = LeaseTerms(1, 1, "t", "cpu", "cpu", None, GiB, CAPACITY, str(tmp_path), False, 2 * GiB)
    for text in ("", "many", "-1", "0", str(2 * GiB + 1)):
        (tmp_path / attempt_files.CEILING).write_text(text)
        assert shares.total(terms) == GiB
    (tmp_path / attempt_files.CEILING).write_text(str(2 * GiB))
    assert shares.total(terms) == 2 * GiB


class Growth(RuleBasedStateMachine):
    """Programs that grow, give back, wait and end, and brokers that are killed at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="elastic-"))
        self.harness = Harness(self.root)
        self.satisfied = 0

    def teardown(self) -> None:
        self.harness.close()
        shutil.rmtree(self.root)

    def one(self, data: st.DataObject, waits: bool | None = None) -> Worker | None:
        workers = [
            worker
            for number in self.harness.workers
            for worker in self.harness.of(number)
            if waits is None or bool(worker.waits) is waits
        ]
        return data.draw(st.sampled_from(workers)) if workers else None

    @precondition(lambda self: len(self.harness.workers) < 6)
    @rule(floor=st.integers(16, 1200), more=st.integers(0, 3000), guest=st.booleans())
    def start(self, floor: int, more: int, guest: bool) -> None:
        memory = Between(floor * MiB, (floor + more) * MiB)
        self.harness.start(memory, "opportunistic" if guest else "guaranteed")

    @rule(data=st.data(), amount=st.integers(1, 2000))
    def allocate(self, data: st.DataObject, amount: int) -> None:
        if worker := self.one(data, waits=False):
            worker.allocate(amount * MiB)

    @rule()
    def turn(self) -> None:
        self.harness.turn()
        self.harness.begin()

    @rule(data=st.data())
    def hear(self, data: st.DataObject) -> None:
        if worker := self.one(data):
            worker.hear()

    @rule(data=st.data(), gives=st.booleans())
    def confirm(self, data: st.DataObject, gives: bool) -> None:
        if worker := self.one(data, waits=False):
            worker.confirm(0 if gives else worker.total)

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        if numbers := sorted(self.harness.workers):
            number = data.draw(st.sampled_from(numbers))
            if len(self.harness.of(number)) < 5:
                self.harness.fork(number)

    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """A process that has got no share tries again."""
        if (worker := self.one(data)) and not worker.limit:
            worker.begin()

    @rule(data=st.data())
    def end_child(self, data: st.DataObject) -> None:
        """A process is killed while its program goes on."""
        if children := [one for some in self.harness.children.values() for one in some]:
            child = data.draw(st.sampled_from(children))
            child.end()
            for some in self.harness.children.values():
                some[:] = [one for one in some if one is not child]

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if numbers := sorted(self.harness.workers):
            self.harness.end(data.draw(st.sampled_from(numbers)))

    @rule()
    def kill(self) -> None:
        self.harness.kill()
        self.harness.begin()

    @rule(seconds=st.integers(1, 40))
    def pass_time(self, seconds: int) -> None:
        self.harness.clock.tick += seconds
        self.harness.clock.at += seconds
        if seconds > 10:
            for number in self.harness.workers:
                for worker in self.harness.of(number):
                    worker.give_up()

    @invariant()
    def the_processes_of_a_program_use_no_more_than_was_granted(self) -> None:
        for number in self.harness.workers:
            limits = [worker.limit for worker in self.harness.of(number)]
            assert sum(limits) <= self.harness.lease(number).ceiling

    @invariant()
    def the_device_is_never_oversubscribed(self) -> None:
        assert self.harness.free >= 0

    @invariant()
    def nothing_is_charged_twice(self) -> None:
        for number in self.harness.workers:
            lease = self.harness.lease(number)
            assert lease.ceiling <= max(lease.most, lease.floor or lease.ceiling)
            assert beside(lease) == 128 * MiB


Growth.TestCase.settings = settings(max_examples=30, stateful_step_count=120, deadline=None)
TestGrowth = pytest.mark.slow(Growth.TestCase)
