"""Groups: several leases, granted all together or not at all."""

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from sublet.domain.nursery import Nursery
from sublet.policy.admission import Plan, plan
from sublet.policy.capacity import Capacity, Holding
from sublet.policy.groups import place
from sublet.policy.growth import spare_main_memory
from sublet.policy.wait_queue import Candidate, Part, WaitQueue
from sublet.policy.wait_reasons import Reasons
from sublet.units import MiB
from support.jobs import device
from support.world import RULES, candidate, check_pure, check_room, offer

NAMES = ("gpu0", "gpu1", "gpu2")
SIZES = {"gpu0": 64, "gpu1": 100, "gpu2": 100}
places = st.sampled_from([names for n in (1, 2, 3) for names in itertools.combinations(NAMES, n)])
parts = st.lists(st.tuples(st.integers(1, 60), places), min_size=1, max_size=4)


def group(first: int, *wanted: tuple[int, tuple[str, ...]], since: float = 0.0) -> Candidate:
    """A group of jobs with consecutive numbers: so many MiB on one of these devices, each."""
    members = tuple(
        Part(first + number, (offer(size, *names),)) for number, (size, names) in enumerate(wanted)
    )
    return Candidate.of_group(members, first, since)


def capacities(
    held: Mapping[str, tuple[Holding, ...]] | None = None, sizes: dict[str, int] = SIZES
) -> list[Capacity]:
    found = []
    for name, size in sizes.items():
        holdings = (held or {}).get(name, ())
        free = size * MiB - sum(one.charge for one in holdings)
        found.append(Capacity(device(name, size * MiB), free, holdings=holdings))
    return found


@given(parts, st.tuples(*(st.integers(0, 100) for _ in NAMES)))
def test_a_placement_is_found_where_there_is_one(
    wanted: list[tuple[int, tuple[str, ...]]], free: tuple[int, ...]
) -> None:
    """As a look at all placements finds it; and it fits."""
    left = {name: size * MiB for name, size in zip(NAMES, free, strict=True)}
    members = group(1, *wanted).parts
    placed = place(members, left)
    fits = []
    for way in itertools.product(*(names for _, names in wanted)):
        taken = dict.fromkeys(NAMES, 0)
        for (size, _), name in zip(wanted, way, strict=True):
            taken[name] += size * MiB
        fits.append(all(taken[name] <= left[name] for name in NAMES))
    assert (placed is not None) == any(fits)
    if placed is not None:
        assert sorted(one.part.job for one in placed) == [part.job for part in members]
        assert all(one.device in one.offer.devices for one in placed)
        for name in NAMES:
            assert sum(one.offer.charge for one in placed if one.device == name) <= left[name]


def test_a_group_that_does_not_fit_as_a_whole_gets_nothing_and_is_passed_by_who_fits() -> None:
    queue = WaitQueue([group(1, (60, NAMES), (60, NAMES), (60, NAMES), (60, NAMES))])
    queue.put(candidate(9, offer(50, *NAMES)))
    made = plan(capacities(), queue, 0.0, RULES)
    assert [grant.job for grant in made.grants] == [9]


def test_a_group_that_fits_starts_whole_and_leaves_the_queue() -> None:
    queue = WaitQueue([group(1, (60, NAMES), (60, NAMES), (60, NAMES))])
    made = plan(capacities(), queue, 0.0, RULES)
    assert {grant.job: grant.device for grant in made.grants} == {
        1: "gpu0",
        2: "gpu1",
        3: "gpu2",
    }
    queue.follow(made, 0.0)
    assert not len(queue)


def test_one_job_can_have_several_leases_on_several_devices() -> None:
    members = (Part(1, (offer(60, "gpu1"),)), Part(1, (offer(60, "gpu2"),)))
    made = plan(capacities(), WaitQueue([Candidate.of_group(members, 1, 0.0)]), 0.0, RULES)
    assert [(grant.job, grant.device) for grant in made.grants] == [(1, "gpu1"), (1, "gpu2")]


def test_the_leases_of_one_job_are_on_different_devices() -> None:
    """Also where one device would have room for all of them."""
    two = (Part(1, (offer(20, *NAMES),)),) * 2
    assert {one.device for one in place(two, dict.fromkeys(NAMES, 100 * MiB)) or ()} == {
        "gpu0",
        "gpu1",
    }
    assert place(two, {"gpu0": 100 * MiB}) is None


def test_opportunistic_jobs_are_stopped_for_a_group_and_their_room_is_kept_for_it() -> None:
    """As many as it needs, once; who stands behind it gets nothing of what it waits for."""
    held: dict[str, tuple[Holding, ...]] = {
        "gpu1": (Holding(90, 60 * MiB, service="opportunistic"),),
        "gpu2": (Holding(91, 90 * MiB),),
    }
    two = (Part(1, (offer(60, "gpu0", "gpu1", "gpu2"),)),) * 2
    queue = WaitQueue([Candidate.of_group(two, 1, 0.0)])
    queue.put(candidate(9, offer(20, *NAMES), since=1.0))
    made = plan(capacities(held), queue, 1.0, RULES)
    assert [(one.job, one.wanted_by) for one in made.preempt] == [(90, 1)]
    assert [(grant.job, grant.device) for grant in made.grants] == [(9, "gpu1")]
    queue.follow(made, 1.0)
    held["gpu1"] = (
        Holding(90, 60 * MiB, service="opportunistic", stopping=True),
        Holding(9, 20 * MiB),
    )
    queue.put(candidate(10, offer(30, *NAMES), since=2.0))
    again = plan(capacities(held), queue, 2.0, RULES)
    assert (again.grants, again.preempt) == ((), ())
    held["gpu1"] = (Holding(9, 20 * MiB),)
    last = plan(capacities(held), queue, 3.0, RULES)
    assert [(grant.job, grant.device) for grant in last.grants][:2] == [(1, "gpu0"), (1, "gpu1")]


def test_idle_nurseries_are_ended_for_a_group_but_never_its_own() -> None:
    """The least recently used one that is not needed; its room is the group's when it has gone."""
    empty = Capacity(device("gpu0", 100 * MiB), 40 * MiB)
    warm = (Nursery(7, 30 * MiB, 1.0, idle=True), Nursery(8, 30 * MiB, 2.0, idle=True))
    one = group(1, (30, ("gpu0",)), (30, ("gpu0",)))
    queue = WaitQueue([replace(one, nursery=7)])
    made = plan([replace(empty, nurseries=warm)], queue, 0.0, RULES)
    assert (made.grants, made.nurseries) == ((), (8,))
    leaving = (warm[0], replace(warm[1], leaving=True))
    again = plan([replace(empty, nurseries=leaving)], queue, 1.0, RULES)
    assert (again.grants, again.nurseries) == ((), ())
    last = plan([replace(empty, free=70 * MiB, nurseries=warm[:1])], queue, 2.0, RULES)
    assert [grant.job for grant in last.grants] == [1, 2]


def test_a_group_that_would_need_the_room_of_its_own_nursery_reserves_nothing() -> None:
    found = Capacity(
        device("gpu0", 100 * MiB), 40 * MiB, nurseries=(Nursery(7, 60 * MiB, 1.0, idle=True),)
    )
    queue = WaitQueue([replace(group(1, (30, ("gpu0",)), (30, ("gpu0",))), nursery=7)])
    queue.led[1] = 0.0
    made = plan([found], queue, 100.0, RULES)
    assert (made.grants, made.nurseries, made.reserved) == ((), (), {})


def test_a_group_that_is_to_be_spread_shares_devices_only_where_it_must() -> None:
    members = group(1, (20, NAMES), (20, NAMES), (20, NAMES), (20, NAMES)).parts
    left = dict.fromkeys(NAMES, 100 * MiB)
    packed, spread = place(members, left), place(members, left, spread=True)
    assert packed is not None
    assert {one.device for one in packed} == {"gpu0"}
    assert spread is not None
    assert {one.device for one in spread} == set(NAMES)


def test_jobs_that_start_together_wait_as_one_candidate() -> None:
    """Held if one of them is, and expected to run as long as the longest, if all are known."""
    ones = [
        candidate(3, offer(10, "gpu0"), expected=5.0),
        candidate(4, offer(50, "gpu1"), expected=9.0),
    ]
    both = Candidate.together(ones)
    assert (both.job, both.expected, both.held) == (3, 9.0, "")
    assert [part.job for part in both.parts] == [3, 4]
    assert both.offers == ones[1].offers
    unknown = Candidate.together([ones[0], replace(ones[1], expected=None, held="paused")])
    assert (unknown.expected, unknown.held) == (None, "paused")


def test_a_job_that_wants_several_devices_is_told_what_each_has() -> None:
    held = {"gpu1": (Holding(90, 60 * MiB, "train.py"),)}
    two = (Part(1, (offer(50, "gpu0", "gpu1"),)),) * 2
    found = capacities(held)
    queue = WaitQueue([Candidate.of_group(two, 1, 0.0)])
    assert Reasons(found, queue, 0.0).why(1) == (
        "needs 2 GPUs with 50.0 MiB each; gpu0 has 64.0 MiB of 64.0 MiB free; "
        "gpu1 has 40.0 MiB of 100 MiB free, held by #90 train.py 60.0 MiB"
    )
    found[1] = replace(found[1], fault="it is lost")
    assert Reasons(found, queue, 0.0).why(1).endswith("; gpu1 cannot be used: it is lost")


def test_room_is_reserved_on_all_devices_of_a_group_that_has_waited_for_long() -> None:
    """Then nobody passes it there, and elsewhere everybody may."""
    held = {name: (Holding(90 + at, 60 * MiB),) for at, name in enumerate(NAMES[:2])}
    queue = WaitQueue([group(1, (50, ("gpu0",)), (50, ("gpu1",)))])
    queue.put(candidate(9, offer(4, *NAMES), since=40.0))
    queue.led[1] = 0.0
    made = plan(capacities(held), queue, 40.0, RULES)
    assert made.reserved == {"gpu0": 1, "gpu1": 1}
    assert [(grant.job, grant.device) for grant in made.grants] == [(9, "gpu2")]


def test_room_that_is_reserved_for_a_group_is_no_spare_memory() -> None:
    """All of it, not that of its largest part."""
    empty = Capacity(device("cpu", 100 * MiB), 70 * MiB, holdings=(Holding(9, 30 * MiB),))
    queue = WaitQueue([group(1, (40, ("cpu",)), (35, ("cpu",)))])
    queue.led[1] = 0.0
    queue.follow(plan([empty], queue, 100.0, RULES), 100.0)
    assert queue.reserved == {"cpu": 1}
    assert spare_main_memory([empty], queue) == -5 * MiB


def test_a_group_with_a_part_that_no_device_can_give_reserves_nothing() -> None:
    queue = WaitQueue([group(1, (50, ("gpu0",)), (500, ("gpu1",)))])
    queue.led[1] = 0.0
    made = plan(capacities(), queue, 100.0, RULES)
    assert (made.grants, made.heads, made.reserved) == ((), (), {})


def test_a_group_that_waits_is_told_what_it_needs_in_all_and_what_there_is() -> None:
    held = {"gpu1": (Holding(90, 60 * MiB, "train.py"),)}
    queue = WaitQueue([group(1, (10, ("gpu0",)), (50, ("gpu1",)))])
    assert Reasons(capacities(held), queue, 0.0).why(1) == (
        "its 2 tasks need 60.0 MiB at the same time; gpu0 has 64.0 MiB of 64.0 MiB free; "
        "gpu1 has 40.0 MiB of 100 MiB free, held by #90 train.py 60.0 MiB"
    )


class Groups(RuleBasedStateMachine):
    """Groups and single jobs come and end in any order; every plan is checked."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.next = 1
        self.queue = WaitQueue()
        self.members: dict[int, tuple[int, ...]] = {}
        """Of each group: the jobs in it, by its name in the queue."""
        self.held: dict[int, tuple[str, Holding]] = {}

    def capacities(self) -> list[Capacity]:
        return capacities(
            {
                name: tuple(one for where, one in self.held.values() if where == name)
                for name in NAMES
            }
        )

    @rule(wanted=parts)
    def come_together(self, wanted: list[tuple[int, tuple[str, ...]]]) -> None:
        one = group(self.next, *wanted, since=self.now)
        self.members[one.job] = tuple(part.job for part in one.parts)
        self.queue.put(one)
        self.next += len(wanted)

    @rule(size=st.integers(1, 60), names=places, expected=st.none() | st.integers(1, 60))
    def come_alone(self, size: int, names: tuple[str, ...], expected: int | None) -> None:
        one = candidate(self.next, offer(size, *names), since=self.now, expected=expected)
        self.queue.put(one)
        self.next += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        del self.held[data.draw(st.sampled_from(sorted(self.held)))]

    @rule(seconds=st.sampled_from([0.5, 12.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def decide(self) -> None:
        found = self.capacities()
        made = plan(found, self.queue, self.now, RULES)
        check_pure(made, found, self.queue, self.now, RULES)
        check_room(made, found)
        granted = {grant.job for grant in made.grants}
        for name, members in self.members.items():
            assert not granted & set(members) or granted >= set(members)
            if name in made.heads and self.now - self.queue.led.get(name, self.now) >= 30.0:
                self.check_not_passed(name, made)
        for grant in made.grants:
            self.held[grant.job] = (grant.device, Holding(grant.job, grant.charge, since=self.now))
        self.queue.follow(made, self.now)

    def check_not_passed(self, name: int, made: Plan) -> None:
        """After its limit nobody behind a group takes room where it is reserved for it."""
        first = self.queue.get(name)
        assert first is not None
        for grant in made.grants:
            other = self.queue.get(grant.job)
            if other is not None and other.place > first.place:
                assert made.reserved.get(grant.device) != name

    def teardown(self) -> None:
        """With nobody new, everybody gets to the end."""
        while self.held:
            self.now += 1.0
            del self.held[min(self.held)]
            self.decide()
        assert not [one for one in self.queue if self.fits_alone(one)]

    def fits_alone(self, one: Candidate) -> bool:
        """Whether there is room for it on empty devices."""
        left = {name: size * MiB for name, size in SIZES.items()}
        return place(one.parts or (Part(one.job, one.offers),), left) is not None


TestGroups = pytest.mark.slow(Groups.TestCase)
TestGroups.settings = settings(max_examples=100, stateful_step_count=40)


@pytest.mark.parametrize("count", [8, 24])
def test_a_group_of_many_alike_is_placed_or_refused_at_once(count: int) -> None:
    """Devices that are alike are not tried one after the other."""
    names = tuple(f"gpu{number:02}" for number in range(count))
    members = tuple(Part(1 + number, (offer(60, *names),)) for number in range(count))
    assert place(members, dict.fromkeys(names, 100 * MiB)) is not None
    assert place((*members, members[0]), dict.fromkeys(names, 100 * MiB)) is None
