"""Who gets a lease, who makes room, who is passed and for how long."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sublet.domain.nursery import Nursery
from sublet.policy.admission import Plan, Preemption, Rules, plan
from sublet.policy.capacity import Capacity, Holding
from sublet.policy.wait_queue import AGEING, Priority, WaitQueue
from sublet.units import MiB
from support.jobs import device
from support.world import RULES, World, candidate, offer


def capacity(
    name: str = "gpu0", capacity: int = 100, strangers: int = 0, holdings: tuple[Holding, ...] = ()
) -> Capacity:
    free = (capacity - strangers) * MiB - sum(one.charge for one in holdings)
    return Capacity(device(name, capacity * MiB), free, (), strangers * MiB, holdings)


def held(job: int, size: int, end: float | None = None) -> Holding:
    return Holding(job, size * MiB, end=end)


def filler(job: int, size: int, stopping: bool = False) -> Holding:
    return Holding(job, size * MiB, service="opportunistic", stopping=stopping)


def granted(made: Plan) -> list[int]:
    return [grant.job for grant in made.grants]


def test_the_tightest_device_is_taken() -> None:
    capacities = (capacity("gpu0", 100), capacity("gpu1", 60), capacity("gpu2", 30))
    (grant,) = plan(
        capacities, WaitQueue([candidate(1, offer(40, "gpu0", "gpu1", "gpu2"))]), 0.0
    ).grants
    assert (grant.device, grant.size.ceiling, grant.charge) == ("gpu1", 40 * MiB, 40 * MiB)


def test_who_is_to_be_spread_goes_where_the_fewest_are_and_then_where_most_is_free() -> None:
    capacities = (
        capacity("gpu0", 500, strangers=1),
        capacity("gpu1", 60, holdings=(held(9, 10),)),
        capacity("gpu2", 30),
        capacity("gpu3", 40),
    )
    everywhere = offer(20, "gpu0", "gpu1", "gpu2", "gpu3")
    waiting = [candidate(number, everywhere, spread=True) for number in range(1, 6)]
    made = plan(capacities, WaitQueue(waiting), 0.0)
    assert [grant.device for grant in made.grants] == ["gpu3", "gpu2", "gpu0", "gpu1", "gpu3"]


@given(
    st.lists(st.integers(100, 400), min_size=1, max_size=5),
    st.integers(1, 30),
    st.integers(10, 60),
)
def test_calls_of_one_size_are_spread_evenly_over_the_devices_that_have_room(
    capacities: list[int], count: int, size: int
) -> None:
    names = [f"gpu{number}" for number in range(len(capacities))]
    devices = [capacity(name, whole) for name, whole in zip(names, capacities, strict=True)]
    waiting = [candidate(n, offer(size, *names), spread=True) for n in range(1, count + 1)]
    made = plan(devices, WaitQueue(waiting), 0.0)
    chosen = [grant.device for grant in made.grants]
    assert len(chosen) == min(count, sum(whole // size for whole in capacities))
    most = max(map(chosen.count, chosen))
    for name, whole in zip(names, capacities, strict=True):
        assert chosen.count(name) >= min(most - 1, whole // size)


def test_each_device_is_judged_by_its_own_offer() -> None:
    one = candidate(1, offer(60, "gpu0"), offer(20, "gpu1", beside=5))
    capacities = (capacity("gpu0", 50), capacity("gpu1", 25))
    (grant,) = plan(capacities, WaitQueue([one]), 0.0).grants
    assert (grant.device, grant.size.ceiling, grant.charge) == ("gpu1", 20 * MiB, 25 * MiB)


def test_a_device_that_is_gone_and_one_without_room_give_nothing() -> None:
    queue = WaitQueue([candidate(1, offer(10, "gpu9")), candidate(2, offer(10)), candidate(3)])
    assert plan((capacity(strangers=120),), queue, 0.0) == Plan((), (), {}, (), {})


def test_what_is_held_does_not_start_and_holds_nobody_up() -> None:
    queue = WaitQueue([candidate(1, offer(60), held="paused"), candidate(2, offer(60))])
    made = plan((capacity(),), queue, 0.0)
    assert granted(made) == [2]
    assert made.heads == ()


def test_classes_come_first_and_within_a_class_the_number_decides() -> None:
    waiting = [
        candidate(1, offer(20), priority="low"),
        candidate(2, offer(20)),
        candidate(3, offer(20)),
        candidate(4, offer(20), since=5.0, priority="high"),
    ]
    assert granted(plan((capacity(capacity=60),), WaitQueue(waiting), 9.0)) == [4, 2, 3]


def test_a_clock_that_jumped_changes_nothing_within_a_class() -> None:
    waiting = [candidate(1, offer(20), since=900.0), candidate(2, offer(20), since=3.0)]
    assert granted(plan((capacity(capacity=20),), WaitQueue(waiting), 1000.0)) == [1]


def test_who_has_waited_long_enough_goes_before_a_higher_class() -> None:
    old, new = candidate(1, offer(20), priority="low"), candidate(2, offer(20), since=AGEING)
    capacities = (capacity(capacity=20),)
    assert granted(plan(capacities, WaitQueue([old, new]), AGEING)) == [1]
    sooner = replace(new, since=AGEING - 1)
    assert granted(plan(capacities, WaitQueue([old, sooner]), AGEING)) == [2]


def test_a_large_job_is_passed_until_its_patience_ends_and_then_room_is_kept() -> None:
    capacities = (capacity(holdings=(held(9, 50),)),)
    queue = WaitQueue([candidate(1, offer(80)), candidate(2, offer(20))])
    made = plan(capacities, queue, 0.0, RULES)
    assert (granted(made), made.heads, made.reserved) == ([2], (1,), {})
    queue.led[1] = 0.0
    assert granted(plan(capacities, queue, RULES.patience - 0.1, RULES)) == [2]
    made = plan(capacities, queue, RULES.patience, RULES)
    assert (granted(made), made.reserved) == ([], {"gpu0": 1})


def test_the_room_is_kept_where_least_is_lacking_and_others_pass_elsewhere() -> None:
    capacities = (
        capacity("gpu0", holdings=(held(8, 70),)),
        capacity("gpu1", holdings=(held(9, 40),)),
    )
    waiting = [candidate(1, offer(80, "gpu0", "gpu1")), candidate(2, offer(30, "gpu0", "gpu1"))]
    queue = WaitQueue(waiting)
    queue.led[1] = 0.0
    made = plan(capacities, queue, RULES.limit, RULES)
    assert made.reserved == {"gpu1": 1}
    assert [(grant.job, grant.device) for grant in made.grants] == [(2, "gpu0")]


def test_patience_grows_with_the_wait_before() -> None:
    capacities = (capacity(holdings=(held(9, 50),)),)
    queue = WaitQueue([candidate(1, offer(80)), candidate(2, offer(20))])
    queue.led[1] = 1000.0
    assert granted(plan(capacities, queue, 1249.0, RULES)) == [2]
    assert granted(plan(capacities, queue, 1250.0, RULES)) == []


@pytest.mark.parametrize(
    ("size", "expected", "passes"),
    [(50, 80.0, True), (50, 81.0, False), (20, None, True), (21, None, False)],
)
def test_between_patience_and_limit_only_who_changes_nothing_for_the_first_passes(
    size: int, expected: float | None, passes: bool
) -> None:
    """The first can start at 100, when 100 are free: it leaves 20 beside it."""
    capacities = (capacity(holdings=(held(8, 20), held(9, 30, end=100.0))),)
    queue = WaitQueue([candidate(1, offer(60)), candidate(2, offer(size), expected=expected)])
    queue.led[1] = 0.0
    assert granted(plan(capacities, queue, 20.0, RULES)) == ([2] if passes else [])
    assert granted(plan(capacities, queue, RULES.limit, RULES)) == []


def test_who_overran_what_was_expected_may_run_for_ever() -> None:
    capacities = (capacity(holdings=(held(9, 30, end=19.0),)),)
    queue = WaitQueue([candidate(1, offer(80)), candidate(2, offer(20), expected=0.5)])
    queue.led[1] = 0.0
    assert granted(plan(capacities, queue, 20.0, RULES)) == []


def test_who_waits_for_strangers_keeps_no_room() -> None:
    queue = WaitQueue([candidate(1, offer(80)), candidate(2, offer(20))])
    queue.led[1] = 0.0
    made = plan((capacity(strangers=40),), queue, 1e6, RULES)
    assert (granted(made), made.heads, made.reserved) == ([2], (), {})


def test_opportunistic_jobs_come_after_all_guaranteed_ones() -> None:
    waiting = [
        candidate(1, offer(60), service="opportunistic", priority="high"),
        candidate(2, offer(60), priority="low"),
    ]
    assert granted(plan((capacity(),), WaitQueue(waiting), 0.0)) == [2]


def test_as_few_as_will_do_and_as_little_as_will_do_are_stopped() -> None:
    sizes = {11: 10, 12: 20, 13: 30, 14: 35}
    capacities = (capacity(holdings=tuple(filler(job, size) for job, size in sizes.items())),)
    for need, stopped in (
        (5, []),
        (14, [11]),
        (20, [12]),
        (35, [13]),
        (50, [14, 11]),
        (65, [14, 13]),
    ):
        made = plan(capacities, WaitQueue([candidate(1, offer(need))]), 0.0)
        assert [stop.job for stop in made.preempt] == stopped
        assert granted(made) == ([] if stopped else [1])


def test_the_device_where_fewest_must_end_is_chosen() -> None:
    capacities = (
        capacity("gpu0", holdings=tuple(filler(n, 20) for n in (11, 12, 13, 14, 15))),
        capacity("gpu1", holdings=(held(8, 40), filler(21, 60))),
    )
    made = plan(capacities, WaitQueue([candidate(1, offer(40, "gpu0", "gpu1"))]), 0.0)
    assert made.preempt == (Preemption(21, "gpu1", 1),)
    assert made.promised == {1: "gpu1"}


def test_nobody_is_stopped_where_it_would_not_help_or_for_an_opportunistic_job() -> None:
    capacities = (capacity(holdings=(held(8, 50), filler(9, 50))),)
    assert plan(capacities, WaitQueue([candidate(1, offer(51))]), 0.0).preempt == ()
    asks = candidate(1, offer(50), service="opportunistic")
    assert plan(capacities, WaitQueue([asks]), 0.0).preempt == ()


def test_nobody_is_stopped_twice_and_what_comes_free_is_waited_for() -> None:
    capacities = (capacity(holdings=(filler(8, 60, stopping=True), filler(9, 40))),)
    made = plan(capacities, WaitQueue([candidate(1, offer(60))]), 0.0)
    assert (made.preempt, made.promised) == ((), {1: "gpu0"})


def test_promised_room_goes_to_whom_it_was_promised_even_if_another_is_first_by_then() -> None:
    world = World({"gpu0": 100})
    world.submit(candidate(1, offer(90), service="opportunistic"))
    world.decide()
    world.submit(candidate(2, offer(80)))
    assert world.decide().preempt == (Preemption(1, "gpu0", 2),)
    world.submit(candidate(3, offer(80), priority="high"))
    assert world.decide().grants == ()
    world.requeue(1)
    assert granted(world.decide()) == [2]
    world.drain()


def test_a_promise_ends_with_the_job_it_was_made_to() -> None:
    world = World({"gpu0": 100})
    world.submit(candidate(1, offer(90), service="opportunistic"))
    world.decide()
    world.submit(candidate(2, offer(80)))
    world.submit(candidate(3, offer(10)))
    world.decide()
    world.queue.take(2)
    world.finished.add(2)
    world.end(1)
    world.submit(candidate(4, offer(90)))
    assert granted(world.decide()) == [4]


def stream(rules: Rules, until: float) -> tuple[World, float | None, float | None]:
    """Small jobs of up to 7 s, more than fit, and a large one: when it led, when it started."""
    draw = random.Random(1)
    world = World({"gpu0": 100, "gpu1": 100}, rules)
    ends: dict[int, float] = {}
    led: float | None = None
    while world.now < until:
        for job in [job for job, end in ends.items() if end <= world.now]:
            world.end(job)
            del ends[job]
        for _ in range(4):
            number = len(world.known) + 1
            size = 95 if number == LARGE else draw.randrange(10, 40)
            world.submit(candidate(number, offer(size, "gpu0", "gpu1"), since=world.now))
        for grant in world.decide().grants:
            ends[grant.job] = world.now + draw.uniform(1.0, 7.0)
        led = world.queue.led.get(LARGE, led)
        if LARGE in ends:
            return world, led, world.now
        world.now += 0.5
    return world, led, None


LARGE = 30


@pytest.mark.slow
def test_a_stream_of_small_jobs_never_keeps_a_large_one_out_past_its_bound() -> None:
    """It starts when those end that ran at its limit; without a bound it would still wait."""
    world, led, start = stream(RULES, until=300.0)
    assert led is not None
    assert start is not None
    _, limit = RULES.bounds(led - world.known[LARGE].since)
    assert led + RULES.patience < start <= led + limit + 7.5
    _, led, start = stream(Rules(patience=1e9, limit=1e9), until=300.0)
    assert led is not None
    assert start is None


@pytest.mark.parametrize("priority", ["normal", "low"])
def test_a_stream_of_higher_classes_never_keeps_a_lower_one_out_for_ever(
    priority: Priority,
) -> None:
    """Only those who come within its ageing can go before it."""
    world = World({"gpu0": 10}, Rules())
    world.submit(candidate(1, offer(10), priority=priority))
    world.submit(candidate(2, offer(10), priority="high"))
    number, before = 3, 0
    while True:
        made = world.decide()
        (start,) = granted(made)
        if start == 1:
            break
        before += 1
        world.now += 1800.0
        world.submit(candidate(number, offer(10), since=world.now, priority="high"))
        number += 1
        world.end(start)
    ranks = {"normal": 1, "low": 2}
    assert before == ranks[priority] * AGEING / 1800.0


def warm(capacity: Capacity, *nurseries: Nursery) -> Capacity:
    """The same device with nurseries on it."""
    free = capacity.free - sum(one.holds for one in nurseries)
    return replace(capacity, nurseries=nurseries, free=free)


OLD = Nursery(1, 20 * MiB, used=1.0, idle=True)
NEW = Nursery(2, 30 * MiB, used=2.0, idle=True)
BUSY = Nursery(3, 20 * MiB, used=0.0)


@pytest.mark.parametrize(
    ("size", "ended"), [(30, ()), (31, (1,)), (50, (1,)), (51, (1, 2)), (80, (1, 2)), (81, ())]
)
def test_idle_nurseries_end_for_a_job_that_fits_then_the_least_recently_used_first(
    size: int, ended: tuple[int, ...]
) -> None:
    here = warm(capacity(), NEW, BUSY, OLD)
    made = plan((here,), WaitQueue([candidate(5, offer(size))]), 0.0)
    assert made.nurseries == ended
    assert granted(made) == [5] * (size <= 30)
    assert made.promised == ({5: "gpu0"} if ended else {})
    # Until they have gone, nobody else is ended for it, and nobody else gets the room.
    left = [replace(one, leaving=one.pid in ended) for one in (NEW, BUSY, OLD)]
    queue = WaitQueue([candidate(5, offer(size)), candidate(6, offer(30))])
    queue.promised = dict(made.promised)
    again = plan((warm(capacity(), *left),), queue, 1.0)
    if ended:
        assert (again.grants, again.nurseries) == ((), () if size > 50 else (2,))


def test_a_job_does_not_end_the_nursery_from_which_it_comes() -> None:
    here = warm(capacity(), OLD, NEW)
    own = replace(candidate(5, offer(75)), nursery=OLD.pid)
    assert plan((here,), WaitQueue([own]), 0.0).nurseries == (NEW.pid,)
    assert plan((here,), WaitQueue([replace(own, offers=(offer(81),))]), 0.0).nurseries == ()


def test_nurseries_end_before_programs_are_stopped() -> None:
    here = warm(capacity(holdings=(filler(8, 40),)), OLD)
    made = plan((here,), WaitQueue([candidate(5, offer(60))]), 0.0)
    assert (made.nurseries, made.preempt) == ((OLD.pid,), ())
    made = plan((here,), WaitQueue([candidate(5, offer(70))]), 0.0)
    assert (made.nurseries, made.preempt) == ((), (Preemption(8, "gpu0", 5),))
    made = plan((here,), WaitQueue([candidate(5, offer(90))]), 0.0)
    assert (made.nurseries, made.preempt) == ((OLD.pid,), (Preemption(8, "gpu0", 5),))


def test_an_opportunistic_job_ends_nurseries_but_no_programs() -> None:
    here = warm(capacity(holdings=(filler(8, 40),)), OLD)
    made = plan((here,), WaitQueue([candidate(5, offer(60), service="opportunistic")]), 0.0)
    assert (made.nurseries, made.preempt, made.promised) == ((OLD.pid,), (), {})
    made = plan((here,), WaitQueue([candidate(5, offer(61), service="opportunistic")]), 0.0)
    assert (made.nurseries, made.preempt) == ((), ())


def test_a_job_reserves_room_that_nurseries_hold() -> None:
    here = warm(capacity(holdings=(held(8, 60),)), OLD, BUSY)
    queue = WaitQueue([candidate(5, offer(95))])
    queue.led = {5: 0.0}
    assert plan((here,), queue, 1e6).reserved == {"gpu0": 5}
    queue = WaitQueue([replace(candidate(5, offer(95)), nursery=BUSY.pid)])
    queue.led = {5: 0.0}
    assert plan((here,), queue, 1e6).reserved == {}
