"""What those who wait are told, and when they are told they will start."""

from hypothesis import given
from hypothesis import strategies as st

from sublet.policy.admission import Capacity, plan
from sublet.policy.capacity import Holding
from sublet.policy.start_times import forecast, in_turn
from sublet.policy.wait_queue import Candidate, WaitQueue
from sublet.policy.wait_reasons import Reasons
from sublet.units import MiB
from support.jobs import device
from support.world import RULES, candidate, offer


def capacity(*holdings: Holding, name: str = "gpu0", strangers: int = 0) -> Capacity:
    free = (100 - strangers) * MiB - sum(one.charge for one in holdings)
    return Capacity(device(name, 100 * MiB), free, (), strangers * MiB, holdings)


def held(job: int, size: int, end: float | None = None, since: float | None = None) -> Holding:
    return Holding(job, size * MiB, "train.py", since=since, end=end)


def starts(
    capacities: list[Capacity], *waiting: Candidate, usual: float | None = None
) -> list[float | None]:
    told = forecast(
        capacities, in_turn(WaitQueue(waiting)), 0.0, {one.job for one in waiting}, usual
    )
    return [told[one.job] for one in waiting]


def test_a_reason_says_what_is_needed_what_is_free_who_is_ahead_and_how_long() -> None:
    queue = WaitQueue([candidate(1, offer(60), expected=60.0), candidate(2, offer(60, beside=5))])
    reasons = Reasons([capacity(held(8, 50, end=720.0), strangers=10)], queue, 0.0)
    by = "held by #8 train.py 50.0 MiB, other programs 10.0 MiB"
    assert reasons.why(1) == (
        f"needs 60.0 MiB on gpu0, 40.0 MiB of 100 MiB free; starts in about 12 min; {by}"
    )
    assert reasons.why(2) == (
        "needs 60.0 MiB + 5.0 MiB for its process on gpu0, 40.0 MiB of 100 MiB free; "
        f"1 job ahead; starts in about 13 min; {by}"
    )
    assert "min" not in reasons.why(1, estimate=False)
    assert reasons.start(2) == 780.0


def test_a_reason_within_a_lease_names_that_lease_and_its_program() -> None:
    lent = Capacity(
        device("the lease of #8", 100 * MiB), 30 * MiB, (), 20 * MiB, (held(9, 50),), within=8
    )
    queue = WaitQueue([candidate(10, offer(60, "the lease of #8", beside=5))])
    assert Reasons([lent], queue, 0.0).why(10) == (
        "needs 60.0 MiB + 5.0 MiB for its process, 30.0 MiB free of the 100 MiB that #8 holds; "
        "held by #9 train.py 50.0 MiB, #8 itself 20.0 MiB"
    )


def test_the_three_largest_holders_are_named() -> None:
    holdings = [held(job, size) for job, size in ((1, 5), (2, 30), (3, 20), (4, 10))]
    why = Reasons([capacity(*holdings)], WaitQueue([candidate(9, offer(90))]), 0.0).why(9)
    assert "#2 train.py 30.0 MiB, #3 train.py 20.0 MiB, #4 train.py 10.0 MiB" in why
    assert "#1" not in why


def test_a_held_job_says_why_and_is_ahead_of_nobody() -> None:
    queue = WaitQueue([candidate(1, offer(60), held="paused"), candidate(2, offer(60))])
    reasons = Reasons([capacity(held(8, 50))], queue, 0.0)
    assert reasons.why(1) == "paused"
    assert "ahead" not in reasons.why(2)


def test_who_is_passed_over_by_nobody_any_more_is_told_so_and_so_are_the_others() -> None:
    capacities = [capacity(held(8, 50))]
    queue = WaitQueue([candidate(1, offer(80)), candidate(2, offer(20))])
    queue.led[1] = 0.0
    queue.follow(plan(capacities, queue, 100.0, RULES), 100.0)
    reasons = Reasons(capacities, queue, 100.0)
    assert "; the room is kept for it" in reasons.why(1)
    assert "50.0 MiB of 100 MiB free, kept for #1" in reasons.why(2)


def test_who_waits_for_others_to_stop_is_told_so() -> None:
    capacities = [capacity(Holding(8, 90 * MiB, "sweep.py", "opportunistic"))]
    queue = WaitQueue([candidate(1, offer(80))])
    queue.follow(plan(capacities, queue, 0.0), 0.0)
    assert "; others are making room for it" in Reasons(capacities, queue, 0.0).why(1)


def test_jobs_for_other_devices_are_not_ahead() -> None:
    queue = WaitQueue([candidate(1, offer(90, "gpu1")), candidate(2, offer(90))])
    capacities = [capacity(held(7, 50)), capacity(held(8, 50), name="gpu1")]
    assert "ahead" not in Reasons(capacities, queue, 0.0).why(2)


def test_each_starts_when_those_before_it_have_left_enough() -> None:
    capacities = [capacity(held(8, 50, end=30.0), held(9, 50, end=10.0))]
    waiting = [candidate(n, offer(50), expected=100.0) for n in (1, 2, 3)]
    assert starts(capacities, *waiting) == [10.0, 30.0, 110.0]


def test_of_several_devices_the_first_to_have_room_is_counted_on() -> None:
    capacities = [capacity(held(8, 90, end=40.0)), capacity(held(9, 90, end=20.0), name="gpu1")]
    both = [candidate(n, offer(50, "gpu0", "gpu1"), expected=9.0) for n in (1, 2)]
    assert set(starts(capacities, *both)) <= {20.0, 29.0, 40.0}


def test_a_lease_of_which_nothing_is_known_runs_as_long_again() -> None:
    assert starts([capacity(held(8, 90, since=-300.0))], candidate(1, offer(50))) == [300.0]
    overran = capacity(held(8, 90, end=-1.0, since=-300.0))
    assert starts([overran], candidate(1, offer(50))) == [300.0]


def test_where_nobody_can_tell_there_is_no_estimate() -> None:
    unknown = [candidate(1, offer(50)), candidate(2, offer(60))]
    assert starts([capacity()], *unknown) == [0.0, None]
    assert starts([capacity()], *unknown, usual=60.0) == [0.0, 60.0]
    assert starts([capacity(held(8, 90))], candidate(1, offer(50))) == [None]
    assert starts([capacity(strangers=60)], candidate(1, offer(50))) == [None]
    assert starts([capacity()], candidate(1, offer(5), held="paused")) == [None]


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(1, 50)), min_size=1, max_size=12))
def test_nobody_is_told_to_start_where_too_much_would_run_at_once(
    jobs: list[tuple[int, int]],
) -> None:
    waiting = [candidate(n, offer(size), expected=float(run)) for n, (size, run) in enumerate(jobs)]
    told = starts([capacity()], *waiting)
    for moment in told:
        assert moment is not None
        together = sum(
            size
            for (size, run), start in zip(jobs, told, strict=True)
            if start is not None and start <= moment < start + run
        )
        assert together <= 100
