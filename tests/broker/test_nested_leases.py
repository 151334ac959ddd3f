"""Leases within leases: what is lent, to whom, and what the device makes of it."""

import os
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from sublet.broker.device_usage import UsageSample, capacities
from sublet.broker.nested_leases import PATIENCE, NestedLeases
from sublet.broker.state import State
from sublet.domain.device import Holder
from sublet.domain.job import Job, Process
from sublet.formats import attempt_files, shares
from sublet.formats.lease import LeaseTerms as InsideLease
from sublet.inside.measure import UsageWriter
from sublet.policy.admission import plan
from sublet.policy.capacity import Capacity, eligible
from sublet.policy.wait_queue import WaitQueue
from sublet.units import GiB, MiB
from support.jobs import device, facts, job, lease, running
from support.world import candidate, offer

CPU = device("cpu", 4 * GiB)
GPU = device("gpu0", 8 * GiB)
BESIDE = 128 * MiB


def holder(number: int, ceiling: int, within: int | None = None, on: str = "cpu") -> Job:
    """A running job whose worker has the pid 1000 + its number."""
    one = job(number, running(lease(on, ceiling * MiB), Process(1000 + number, 1)))
    return replace(one, spec=replace(one.spec, within=within))


def waiter(number: int, within: int) -> Job:
    one = job(number)
    return replace(one, spec=replace(one.spec, within=within))


def rooms_of(
    holding: list[Job], used: dict[int, int] | None = None, taken: dict[int, int] | None = None
) -> dict[str, Capacity]:
    """On an idle CPU; in MiB: what trees hold, and what TensorFlow has taken in programs that
    others are within."""
    samples = {f"{n}.1": UsageSample(mib * MiB, 0, ()) for n, mib in (used or {}).items()}
    lenders = {n: mib * MiB for n, mib in (taken or {}).items()}
    made = capacities({"cpu": facts(CPU)}, holding, samples, (), lenders=lenders)
    return {capacity.device.id: capacity for capacity in made}


def test_the_device_counts_an_outer_lease_once() -> None:
    inner = [holder(2, 256, within=1), holder(3, 256, within=1)]
    made = rooms_of([holder(1, 1024), *inner], taken={1: 0})
    assert [one.job for one in made["cpu"].holdings] == [1]
    assert made["cpu"].free == 4 * GiB - GiB - BESIDE
    capacity = made["the lease of #1"]
    assert (capacity.device.capacity, capacity.within) == (GiB, 1)
    assert [one.job for one in capacity.holdings] == [2, 3]
    assert capacity.free == GiB - 2 * (256 * MiB + BESIDE)


def test_what_the_outer_program_has_taken_is_not_lent() -> None:
    made = rooms_of([holder(1, 1024)], used={1: 100}, taken={1: 300})
    capacity = made["the lease of #1"]
    assert (capacity.strangers, capacity.free) == (300 * MiB, 724 * MiB)
    assert capacity.reachable == 724 * MiB


def test_what_its_processes_hold_beyond_their_charge_is_not_lent_either() -> None:
    capacity = rooms_of([holder(1, 1024)], used={1: 500}, taken={1: 300})["the lease of #1"]
    assert capacity.strangers == 500 * MiB - BESIDE


def test_where_program_and_inner_leases_come_to_more_than_the_charge_that_counts() -> None:
    holding = [holder(1, 1024), holder(2, 800, within=1)]
    made = rooms_of(holding, used={1: 400}, taken={1: 0})
    assert made["cpu"].free == 4 * GiB - 400 * MiB - 800 * MiB - BESIDE
    assert made["the lease of #1"].free < 0


def test_a_lease_within_a_lease_can_be_lent_from_too() -> None:
    holding = [holder(1, 2048), holder(2, 1024, within=1), holder(3, 512, within=2)]
    made = rooms_of(holding, taken={1: 0, 2: 0})
    assert made["cpu"].free == 4 * GiB - 2 * GiB - BESIDE
    assert made["the lease of #1"].free == GiB - BESIDE
    assert made["the lease of #2"].free == 512 * MiB - BESIDE


def test_one_whose_outer_lease_has_ended_counts_on_the_device() -> None:
    made = rooms_of([holder(2, 256, within=1)])
    assert made["cpu"].free == 4 * GiB - 256 * MiB - BESIDE


def test_a_gpu_that_does_not_show_bytes_counts_nothing_twice() -> None:
    holding = [holder(1, 4096, on="gpu0"), holder(2, 1024, within=1, on="gpu0")]
    seen = (Holder(1001, "a", None), Holder(1002, "b", None))
    fact = facts(GPU, used=5 * GiB, holders=seen)
    made = capacities({"gpu0": fact}, holding, {}, (), lenders={1: 0})[0]
    assert made.strangers == 5 * GiB - (4 * GiB + BESIDE)


def test_a_job_goes_into_its_outer_lease_and_all_others_to_devices() -> None:
    made = tuple(rooms_of([holder(1, 1024)], taken={1: 0}).values())
    assert eligible(None, made) == ["cpu"]
    assert eligible(None, made, within=1) == ["the lease of #1"]
    assert eligible("cpu", made, within=7) == []


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for number in range(1, 5):
        (tmp_path / f"{number}.1").mkdir()
    return tmp_path


def inside(runs: Path, ceiling: int = GiB) -> InsideLease:
    return InsideLease(1, 1, "t", "cpu", "cpu", None, ceiling, 4 * GiB, str(runs / "1.1"))


def test_the_outer_program_is_told_what_is_left_for_it(runs: Path) -> None:
    outer, inner = holder(1, 1024), holder(2, 256, within=1)
    nested_leases = NestedLeases(State([outer, inner]), runs)
    nested_leases.settle(1)
    assert shares.total(inside(runs)) == GiB - 256 * MiB - BESIDE
    nested_leases = NestedLeases(State([outer]), runs)
    nested_leases.settle(1)
    assert shares.total(inside(runs)) == GiB


def test_the_next_broker_tells_it_anew(runs: Path) -> None:
    """One was within when the last broker died, and has ended since."""
    NestedLeases(State([holder(1, 1024), holder(2, 256, within=1)]), runs).settle(1)
    NestedLeases(State([holder(1, 1024), holder(3, 64)]), runs).adopt()
    assert shares.total(inside(runs)) == GiB
    assert not attempt_files.has_ceiling(str(runs / "3.1"))


def test_the_most_that_was_lent_is_remembered_until_the_end(runs: Path) -> None:
    outer = holder(1, 1024)
    state = State([outer, holder(2, 256, within=1)])
    nested_leases = NestedLeases(state, runs)
    assert not nested_leases.has_lent(outer)
    nested_leases.settle(1)
    assert nested_leases.has_lent(outer)
    assert nested_leases.take_most("1.1") == 256 * MiB + BESIDE
    assert nested_leases.take_most("1.1") == 0


def test_only_boards_of_processes_that_live_count(runs: Path) -> None:
    for pid, peak in ((os.getpid(), 100 * MiB), (2**22 + 1, 500 * MiB)):
        UsageWriter(inside(runs), pid).note(runtime_started_ns=1, peak=peak)
    nested_leases = NestedLeases(State([holder(1, 1024), waiter(2, 1)]), runs)
    assert nested_leases.lenders() == {1: 100 * MiB}
    assert NestedLeases(State([holder(1, 1024)]), runs).lenders() == {}
    assert NestedLeases(State([holder(1, 1024)]), runs).lenders(1, 9) == {1: 100 * MiB}


def test_one_that_waits_for_what_its_outer_program_holds_is_given_up_after_a_while(
    runs: Path,
) -> None:
    """That program may wait for it in turn."""
    holding = [holder(1, 1024), holder(3, 256, within=1)]
    nested_leases = NestedLeases(State([*holding, waiter(2, 1)]), runs)
    queue = WaitQueue([candidate(2, offer(512, "the lease of #1"))])
    full = tuple(rooms_of(holding, taken={1: 600}).values())
    half = tuple(rooms_of(holding, taken={1: 500}).values())
    assert list(nested_leases.cramped(full, queue, 0.0)) == []
    assert list(nested_leases.cramped(full, queue, PATIENCE - 1)) == []
    assert (
        list(nested_leases.cramped(half, queue, PATIENCE)) == []
    )  # It waits for #3, which will end.
    assert list(nested_leases.cramped(full, queue, PATIENCE + 1)) == []
    ((one, why),) = nested_leases.cramped(full, queue, 2 * PATIENCE + 1)
    assert one.id == 2
    assert why == (
        "it needs 512 MiB, and of the 1.0 GiB that #1 holds, that program itself uses 600 MiB"
    )


class Nesting(RuleBasedStateMachine):
    """Jobs on devices and within each other, by the real rooms and the real plan."""

    def __init__(self) -> None:
        super().__init__()
        self.next = 1
        self.holding: dict[int, Job] = {}
        self.waiting: dict[int, Job] = {}
        self.queue = WaitQueue()
        self.used: dict[int, int] = {}

    def capacities(self) -> tuple[Capacity, ...]:
        taken = {number: self.used.get(number, 0) for number in self.holding}
        return tuple(rooms_of(list(self.holding.values()), self.used, taken).values())

    @rule(size=st.integers(16, 3000), data=st.data())
    def ask(self, size: int, data: st.DataObject) -> None:
        within = data.draw(st.sampled_from([None, *self.holding]))
        where = "cpu" if within is None else f"the lease of #{within}"
        one = job(self.next)
        self.waiting[self.next] = replace(one, spec=replace(one.spec, within=within))
        self.queue.put(candidate(self.next, offer(size, where, beside=128)))
        self.next += 1

    @precondition(lambda self: self.holding)
    @rule(data=st.data(), mib=st.integers(0, 4000))
    def use(self, data: st.DataObject, mib: int) -> None:
        self.used[data.draw(st.sampled_from(sorted(self.holding)))] = mib

    @precondition(lambda self: self.holding)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        gone = [data.draw(st.sampled_from(sorted(self.holding)))]
        for number in gone:
            gone += [n for n, one in self.holding.items() if one.spec.within == number]
            for other in [n for n, one in self.waiting.items() if one.spec.within == number]:
                del self.waiting[other]
                self.queue.take(other)
        for number in gone:
            del self.holding[number]
            self.used.pop(number, None)

    @rule()
    def grant(self) -> None:
        before = self.capacities()
        made = plan(before, self.queue, 0.0)
        self.queue.follow(made, 0.0)
        for grant in made.grants:
            one = self.waiting.pop(grant.job)
            held = replace(lease(), ceiling=grant.size.ceiling, charge=grant.charge)
            self.holding[grant.job] = one.evolve(running(held, Process(1000 + grant.job, 1)))
        after = {capacity.device.id: capacity for capacity in self.capacities()}
        for capacity in before:
            within = [grant.charge for grant in made.grants if grant.device == capacity.device.id]
            # What is granted on one floor is paid for on that floor, and on no other.
            assert after[capacity.device.id].free == capacity.free - sum(within)
            assert not within or after[capacity.device.id].free >= 0

    @invariant()
    def no_lease_lends_more_than_it_has_and_no_device_more_than_it_has(self) -> None:
        lent: dict[int | None, int] = {}
        for one in self.holding.values():
            assert one.lease is not None
            lent[one.spec.within] = lent.get(one.spec.within, 0) + one.lease.charge
        for number, sum_of_charges in lent.items():
            outer = None if number is None else self.holding[number].lease
            assert sum_of_charges <= (CPU.capacity if outer is None else outer.ceiling)


Nesting.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestNesting = Nesting.TestCase
