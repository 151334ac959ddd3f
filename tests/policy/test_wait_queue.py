"""Who waits, in order and by size."""

import random

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sublet.policy.wait_queue import NEVER, Candidate, Lane, Priority, Reach, WaitQueue
from sublet.units import MiB
from support.world import candidate, offer

actions = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "take", "hold"]), st.integers(0, 60), st.integers(1, 9)
    ),
    max_size=120,
)


@given(actions, st.integers(0, 10), st.integers(0, 10), st.integers(0, 9))
def test_a_lane_finds_exactly_those_that_are_small_or_small_and_brief_enough(
    done: list[tuple[str, int, int]], anybody: int, brief: int, within: int
) -> None:
    lane = Lane("guaranteed", ("gpu0",))
    reach = Reach(anybody * MiB, brief * MiB, float(within))
    model: dict[int, Candidate] = {}
    for verb, job, size in done:
        if verb == "take":
            if job in model:
                lane.take(model.pop(job))
            continue
        expected = None if job % 3 == 0 else float(job % 10)
        held = "paused" if verb == "hold" else ""
        model[job] = candidate(job, offer(size), expected=expected, held=held)
        lane.put(model[job])
        lane.find(0, reach)
    assert [one.job for one in lane] == sorted(model)
    found, at = [], lane.find(0, reach)
    while at is not None:
        found.append(lane[at].job)
        at = lane.find(at + 1, reach)
    assert found == [job for job in sorted(model) if reach.includes(model[job])]
    assert lane.find(10_000, Reach(NEVER - 1)) is None


def test_the_order_does_not_depend_on_who_was_put_first() -> None:
    classes: tuple[Priority, ...] = ("high", "normal", "low")
    kinds = [(places, priority) for priority in classes for places in ("gpu0", "gpu1")] * 5
    waiting = [
        candidate(job, offer(5, place), since=float(job), priority=priority)
        for job, (place, priority) in enumerate(kinds)
    ]
    expected = [one.job for one in sorted(waiting, key=lambda one: one.place)]
    for seed in range(3):
        shuffled = random.Random(seed).sample(waiting, len(waiting))
        assert [one.job for one in WaitQueue(shuffled)] == expected


def test_a_job_that_comes_back_finds_its_place() -> None:
    waiting = [candidate(job, offer(5)) for job in range(50)]
    queue = WaitQueue(waiting)
    queue.take(7)
    assert 7 not in queue
    queue.put(waiting[7])
    assert [one.job for one in queue] == list(range(50))


def test_what_is_known_of_a_job_can_change_and_move_it() -> None:
    queue = WaitQueue([candidate(1, offer(5)), candidate(2, offer(5))])
    queue.put(candidate(1, offer(5, "gpu1"), priority="low"))
    assert [one.job for one in queue] == [2, 1]
    assert len(queue) == 2


def test_keep_makes_the_line_be_of_exactly_these() -> None:
    waiting = [candidate(job, offer(5)) for job in range(5)]
    queue = WaitQueue(waiting)
    queue.led[0] = queue.led[3] = 1.0
    queue.promised[0] = "gpu0"
    queue.keep([*waiting[2:], candidate(9, offer(1))])
    assert [one.job for one in queue] == [2, 3, 4, 9]
    assert (queue.led, queue.promised) == ({3: 1.0}, {})


def test_nothing_can_start_a_job_that_is_held_or_has_no_offer() -> None:
    assert candidate(1).smallest == NEVER
    assert candidate(1, offer(5), held="paused").smallest == NEVER
    assert replace(candidate(1, offer(5), offer(3, "gpu1"))).smallest == 3 * MiB
