"""Gangs: tasks that start, end and restart together."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from sublet.domain.job import Role
from sublet.domain.nursery import Nursery
from sublet.policy.admission import plan
from sublet.policy.capacity import Capacity, Holding
from sublet.policy.gangs import Progress, Settlement, TaskProgress, leads, settle
from sublet.policy.wait_queue import Candidate, WaitQueue
from sublet.units import MiB
from support.jobs import device
from support.world import RULES, candidate, check_pure, check_room, offer

MIRRORED: tuple[Role, ...] = ("worker", "worker")
SERVED: tuple[Role, ...] = ("chief", "worker", "worker", "ps", "evaluator")


def tasks(roles: tuple[Role, ...], *progress: Progress) -> list[TaskProgress]:
    return [TaskProgress(*pair) for pair in zip(roles, progress, strict=True)]


@pytest.mark.parametrize("progress", ["waits", "holds"])
def test_a_gang_whose_tasks_are_all_alike_is_left_alone(progress: Progress) -> None:
    assert settle(tasks(MIRRORED, progress, progress)) == Settlement()


def test_the_first_failure_ends_all_others() -> None:
    found = settle(tasks(SERVED, "holds", "failed", "holds", "holds", "waits"))
    assert found == Settlement("failed", stop=(0, 2, 3), withdraw=(4,))


def test_workers_without_a_parameter_server_are_all_awaited() -> None:
    assert settle(tasks(MIRRORED, "done", "holds")) == Settlement()
    assert settle(tasks(MIRRORED, "done", "done")) == Settlement("done")
    with_chief: tuple[Role, ...] = ("chief", "worker", "evaluator")
    assert settle(tasks(with_chief, "done", "holds", "holds")) == Settlement()
    assert settle(tasks(with_chief, "done", "done", "holds")) == Settlement("done", stop=(2,))


def test_with_parameter_servers_the_chief_decides_when_the_work_is_done() -> None:
    """Its workers serve it, and never end by themselves."""
    found = settle(tasks(SERVED, "done", "holds", "holds", "holds", "holds"))
    assert found == Settlement("done", stop=(1, 2, 3, 4))
    without: tuple[Role, ...] = ("worker", "ps")
    assert settle(tasks(without, "done", "holds")) == Settlement("done", stop=(1,))
    assert settle(tasks(without, "holds", "done")) == Settlement()


def test_a_task_that_waits_again_brings_all_others_back() -> None:
    """Those that run are stopped; when nobody runs, those that were done wait, too."""
    three: tuple[Role, ...] = ("worker", "worker", "worker")
    assert settle(tasks(three, "done", "waits", "holds")) == Settlement("again", stop=(2,))
    assert settle(tasks(three, "done", "waits", "waits")) == Settlement("again", reopen=(0,))


ROLES: tuple[tuple[Role, ...], ...] = (
    ("worker",),
    MIRRORED,
    ("chief", "worker", "ps"),
    SERVED,
)
SIZES = {"gpu0": 100, "gpu1": 64}
NURSERY = 20


class Task:
    """A task as a broker would keep it."""

    def __init__(self, number: int, role: Role, size: int) -> None:
        self.number = number
        self.role = role
        self.size = size
        self.progress: Progress = "waits"
        self.device = ""
        self.stopping = ""


class Gangs(RuleBasedStateMachine):
    """Gangs and single jobs, tasks that end in any way at any time, and a broker that follows."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.next = 1
        self.gangs: list[list[Task]] = []
        self.nursery = True
        """Whether somebody's idle nursery stands on the first device."""

    @rule(
        roles=st.sampled_from(ROLES),
        sizes=st.tuples(*(st.integers(1, 60) for _ in SERVED)),
    )
    def launch(self, roles: tuple[Role, ...], sizes: tuple[int, ...]) -> None:
        self.gangs.append(
            [
                Task(self.next + at, role, size)
                for at, (role, size) in enumerate(zip(roles, sizes, strict=False))
            ]
        )
        self.next += len(roles)

    @rule(size=st.integers(1, 60))
    def submit(self, size: int) -> None:
        """A job alone is a gang of one worker."""
        self.gangs.append([Task(self.next, "worker", size)])
        self.next += 1

    @precondition(lambda self: self.holders())
    @rule(data=st.data(), how=st.sampled_from(["done", "done", "failed", "waits"]))
    def end(self, data: st.DataObject, how: Progress) -> None:
        """A task ends of itself, or one that was stopped has ended."""
        task = data.draw(st.sampled_from(self.holders()))
        terms: dict[str, Progress] = {"done": "done", "failed": "failed", "again": "waits"}
        task.progress = terms.get(task.stopping, how)
        task.stopping = task.device = ""

    @rule(seconds=st.sampled_from([0.5, 12.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def warm_up(self) -> None:
        """Another nursery comes, if there is room."""
        if not self.nursery and self.capacities()[0].free >= NURSERY * MiB:
            self.nursery = True

    def holders(self) -> list[Task]:
        return [task for gang in self.gangs for task in gang if task.progress == "holds"]

    def capacities(self) -> list[Capacity]:
        found = []
        for name, size in SIZES.items():
            held = tuple(
                Holding(task.number, task.size * MiB, stopping=bool(task.stopping))
                for task in self.holders()
                if task.device == name
            )
            warm = self.nursery and name == "gpu0"
            nurseries = (Nursery(999, NURSERY * MiB, idle=True),) if warm else ()
            free = (size - warm * NURSERY) * MiB - sum(one.charge for one in held)
            found.append(Capacity(device(name, size * MiB), free, nurseries, 0, held))
        return found

    def queue(self) -> WaitQueue:
        """The gangs of which all tasks wait, and so none holds anything."""
        ones = []
        for gang in self.gangs:
            if {task.progress for task in gang} == {"waits"}:
                parts = [
                    candidate(task.number, offer(task.size, *SIZES), since=gang[0].number)
                    for task in gang
                ]
                ones.append(Candidate.together(parts) if len(parts) > 1 else parts[0])
        return WaitQueue(ones)

    @invariant()
    def follow(self) -> None:
        """Settle all gangs, then plan; as a broker does after each event."""
        for gang in self.gangs:
            self.settle(gang)
        found, queue = self.capacities(), self.queue()
        queue.led = {one.job: one.since for one in queue}
        made = plan(found, queue, self.now + self.next, RULES)
        check_pure(made, found, queue, self.now + self.next, RULES)
        check_room(made, found)
        by_number = {task.number: task for gang in self.gangs for task in gang}
        for grant in made.grants:
            by_number[grant.job].progress = "holds"
            by_number[grant.job].device = grant.device
        for gang in self.gangs:
            self.check(gang)
        if made.nurseries:
            self.nursery = False
            self.follow()

    def settle(self, gang: list[Task]) -> None:
        done = settle([TaskProgress(task.role, task.progress) for task in gang])
        for at in done.stop:
            gang[at].stopping = gang[at].stopping or done.why
        for at in done.withdraw:
            gang[at].progress = "done" if done.why == "done" else "failed"
        for at in done.reopen:
            gang[at].progress = "waits"

    def check(self, gang: list[Task]) -> None:
        """Never half-started: a gang of which some wait has nobody who runs and goes on."""
        goes_on = [task for task in gang if task.progress == "holds" and not task.stopping]
        waits = [task for task in gang if task.progress == "waits"]
        assert not (goes_on and waits)
        if any(task.progress == "failed" for task in gang):
            assert not goes_on
            assert not waits

    def teardown(self) -> None:
        """With nobody new and no more failures, every gang that fits comes to its end."""
        self.follow()
        while holders := self.holders():
            self.now += 1.0
            first = min(holders, key=lambda task: task.number)
            terms: dict[str, Progress] = {"failed": "failed", "again": "waits"}
            first.progress = terms.get(first.stopping, "done")
            first.stopping = first.device = ""
            self.follow()
        left = [gang for gang in self.gangs if {task.progress for task in gang} == {"waits"}]
        for gang in left:
            assert sum(task.size for task in gang) > min(SIZES.values())
            self.check_too_large(gang)

    def check_too_large(self, gang: list[Task]) -> None:
        """There is no room for it even on empty devices."""
        self.nursery = False
        keep, self.gangs = self.gangs, [gang]
        self.follow()
        assert {task.progress for task in gang} == {"waits"}
        self.gangs = keep


TestGangs = pytest.mark.slow(Gangs.TestCase)
TestGangs.settings = settings(max_examples=25, stateful_step_count=40)


def test_no_gang_waits_for_one_that_waits_for_it() -> None:
    """Two gangs that each need more than half: one starts whole, the other takes its place."""
    first = [candidate(1, offer(60, *SIZES)), candidate(2, offer(60, *SIZES))]
    second = [replace(one, job=one.job + 2, order=one.job + 2) for one in first]
    queue = WaitQueue([Candidate.together(first), Candidate.together(second)])
    empty = [Capacity(device(name, size * MiB), size * MiB) for name, size in SIZES.items()]
    made = plan(empty, queue, 0.0, RULES)
    assert [grant.job for grant in made.grants] == [1, 2]
    queue.follow(made, 0.0)
    again = plan(empty, queue, 1.0, RULES)
    assert [grant.job for grant in again.grants] == [3, 4]


def test_every_role_but_ps_and_evaluator_can_lead() -> None:
    assert leads("worker", frozenset(MIRRORED))
    assert not leads("worker", frozenset(SERVED))
    assert not leads("ps", frozenset(SERVED))
