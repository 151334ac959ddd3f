"""Who gets more than was promised: by examples, and for arbitrary devices and askers."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sublet.domain.nursery import Nursery
from sublet.policy.capacity import Capacity, Holding
from sublet.policy.growth import LEAST_STEP, Ask, GrowthPlan, Raise, plan
from sublet.policy.wait_queue import WaitQueue
from sublet.units import GiB, MiB
from support.jobs import device
from support.world import candidate, offer

CPU = device("cpu", 8 * GiB)


def capacity(free: int, *holdings: Holding) -> Capacity:
    """A device with so many MiB free."""
    return Capacity(CPU, free * MiB, holdings=holdings)


def ask(
    job: int = 1, ceiling: int = 1024, most: int = 8192, since: float = 0.0, **fields: object
) -> Ask:
    made = Ask(job, "cpu", ceiling * MiB, most * MiB, since)
    return replace(made, **fields)


def raised(made: GrowthPlan) -> dict[int, int]:
    """What each has got, in MiB."""
    return {one.job: one.ceiling // MiB for one in made.raises}


def test_a_first_step_is_a_quarter_of_the_lease_and_each_next_one_twice_as_large() -> None:
    for steps, ceiling in ((0, 1280), (1, 1536), (2, 2048)):
        made = plan([capacity(4096)], WaitQueue(), [ask(steps=steps)])
        assert made == GrowthPlan((Raise(1, ceiling * MiB),))


def test_a_step_of_a_small_lease_is_worth_its_while() -> None:
    made = plan([capacity(4096)], WaitQueue(), [ask(ceiling=16)])
    assert raised(made) == {1: 16 + LEAST_STEP // MiB}


def test_nobody_gets_more_than_is_free_or_than_it_may_have() -> None:
    assert raised(plan([capacity(100)], WaitQueue(), [ask()])) == {1: 1124}
    assert raised(plan([capacity(4096)], WaitQueue(), [ask(most=1030)])) == {1: 1030}
    assert plan([capacity(4096)], WaitQueue(), [ask(most=1024)]) == GrowthPlan()


def test_who_asks_ahead_of_need_gets_half_of_what_others_leave_and_nobody_is_stopped() -> None:
    """Nor is anybody told that it waits."""
    early, late = ask(ahead=300 * MiB), ask(job=2, since=9.0)
    assert raised(plan([capacity(4096)], WaitQueue(), [early])) == {1: 1324}
    assert raised(plan([capacity(300)], WaitQueue(), [early, late])) == {1: 1046, 2: 1280}
    lowly = Holding(7, 5 * GiB, "train.py", service="opportunistic")
    assert plan([capacity(0, lowly)], WaitQueue(), [early]) == GrowthPlan()


def test_without_room_it_hears_who_has_it() -> None:
    holdings = (Holding(1, GiB, "mine.py"), Holding(7, 5 * GiB, "train.py"))
    made = plan([capacity(-5, *holdings)], WaitQueue(), [ask()])
    assert made.raises == ()
    assert made.waits == {
        1: "needs more than its lease of 1.0 GiB; 0 B of 8.0 GiB free; held by #7 train.py 5.0 GiB"
    }


def test_room_that_was_promised_to_a_job_that_waits_is_not_eaten() -> None:
    queue = WaitQueue([candidate(9, offer(1000, "cpu"))])
    queue.promised = {9: "cpu"}
    assert raised(plan([capacity(1100)], queue, [ask()])) == {1: 1124}
    queue.promised = {}
    queue.reserved = {"cpu": 9}
    made = plan([capacity(1000)], queue, [ask()])
    assert made.raises == ()
    assert "kept for those who wait" in made.waits[1]


def test_guaranteed_programs_come_first_then_who_has_waited_longest() -> None:
    asks = [
        ask(1, since=1.0, service="opportunistic"),
        ask(2, since=3.0),
        ask(3, since=2.0),
    ]
    assert raised(plan([capacity(400)], WaitQueue(), asks)) == {3: 1280, 2: 1168}


def test_who_can_be_reached_only_once_more_gets_its_share_of_all_there_is() -> None:
    assert raised(plan([capacity(4000)], WaitQueue(), [ask(last=True)])) == {1: 5024}
    asks = [ask(1, last=True), ask(2, since=1.0)]
    assert raised(plan([capacity(4000)], WaitQueue(), asks)) == {1: 3024, 2: 1280}


def test_who_says_what_it_needs_gets_that_or_nothing() -> None:
    """A part of it would help nobody."""
    need = ask(need=2000 * MiB + 1)
    assert raised(plan([capacity(4096)], WaitQueue(), [need])) == {1: 1024 + 2001}
    short = plan([capacity(2000)], WaitQueue(), [need])
    assert short.raises == ()
    assert list(short.waits) == [1]
    assert plan([capacity(4096)], WaitQueue(), [ask(most=2048, need=GiB + 1)]) == GrowthPlan()


def test_as_few_opportunistic_programs_as_will_do_are_stopped() -> None:
    guests = [
        Holding(number, size * MiB, "guest.py", "opportunistic")
        for number, size in ((5, 100), (6, 300), (7, 400))
    ]
    made = plan([capacity(0, *guests)], WaitQueue(), [ask()])
    assert [(one.job, one.wanted_by) for one in made.preempt] == [(6, 1)]
    made = plan([capacity(0, *guests)], WaitQueue(), [ask(service="opportunistic")])
    assert made.preempt == ()


def test_what_is_coming_free_already_is_waited_for() -> None:
    going = Holding(5, 512 * MiB, "old.py", "opportunistic", stopping=True)
    staying = Holding(6, 512 * MiB, "guest.py", "opportunistic")
    assert plan([capacity(0, going, staying)], WaitQueue(), [ask()]).preempt == ()


asks = st.lists(
    st.builds(
        ask,
        job=st.integers(1, 30),
        ceiling=st.integers(16, 4096),
        most=st.integers(16, 8192),
        since=st.floats(0, 100),
        service=st.sampled_from(["guaranteed", "opportunistic"]),
        steps=st.integers(0, 40),
        last=st.booleans(),
        need=st.sampled_from([0, 0, 1, 300 * MiB, 5 * GiB]),
    ),
    unique_by=lambda one: one.job,
    max_size=8,
)


@given(asks, st.integers(-500, 8192))
def test_raises_never_add_up_to_more_than_is_free(these: list[Ask], free: int) -> None:
    made = plan([capacity(free)], WaitQueue(), these)
    known = {one.job: one for one in these}
    given_away = sum(one.ceiling - known[one.job].ceiling for one in made.raises)
    assert given_away <= max(0, free) * MiB
    for one in made.raises:
        assert known[one.job].ceiling < one.ceiling <= known[one.job].most
    assert len({one.job for one in made.raises}) == len(made.raises)


@given(asks, st.integers(-500, 8192))
def test_the_order_of_the_asks_decides_nothing(these: list[Ask], free: int) -> None:
    one = plan([capacity(free)], WaitQueue(), these)
    other = plan([capacity(free)], WaitQueue(), these[::-1])
    assert one == other


def test_idle_nurseries_end_for_an_allocation_before_programs_are_stopped() -> None:
    idle = tuple(Nursery(pid, 100 * MiB, used=pid, idle=True) for pid in (2, 1))
    filler = Holding(7, GiB, service="opportunistic")
    here = replace(capacity(100, filler), nurseries=idle)
    made = plan([here], WaitQueue(), [ask(ceiling=16)])
    assert (raised(made), made.nurseries, made.preempt) == ({1: 116}, (1,), ())
    made = plan([here], WaitQueue(), [ask(ceiling=1200)])
    assert (made.nurseries, [one.job for one in made.preempt]) == ((1, 2), [])
    made = plan([here], WaitQueue(), [ask(ceiling=1204)])
    assert (made.nurseries, [one.job for one in made.preempt]) == ((), [7])


def test_what_is_coming_free_of_nurseries_is_waited_for() -> None:
    leaving = Nursery(1, 100 * MiB, idle=True, leaving=True)
    here = replace(capacity(100), nurseries=(leaving, Nursery(2, GiB, idle=True)))
    assert plan([here], WaitQueue(), [ask(ceiling=16)]).nurseries == ()


def test_an_exact_need_that_nurseries_cannot_meet_ends_none() -> None:
    here = replace(capacity(0), nurseries=(Nursery(1, 100 * MiB, idle=True),))
    assert plan([here], WaitQueue(), [ask(need=101 * MiB)]).nurseries == ()
    assert plan([here], WaitQueue(), [ask(need=100 * MiB)]).nurseries == (1,)
    assert plan([here], WaitQueue(), [ask(ceiling=1024)]).nurseries == (1,)
