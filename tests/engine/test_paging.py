"""Which models stay in memory."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from sublet.engine.paging import Evict, Habit, Never, Reserve, Residency, Wait, expired, plan

NOW = 1000.0


def residency(
    key: str, size: int = 10, seconds: float = 1.0, used: float = 0.0, **more: object
) -> Residency:
    """A model that was used now and then until `used`."""
    habit = Habit(0.0, used, 10.0, 10.0)
    return dataclasses.replace(Residency(key, size, seconds, 0.0, habit), **more)  # type: ignore[arg-type]


@st.composite
def residencies(draw: st.DrawFn) -> list[Residency]:
    count, uses = draw(st.integers(0, 8)), draw(st.floats(0, 10))
    return [
        Residency(
            f"m{number}",
            draw(st.integers(0, 50)),
            draw(st.floats(0, 10)),
            loaded := draw(st.floats(0, NOW)),
            Habit(0.0, draw(st.none() | st.floats(loaded, NOW)), draw(st.floats(0, 99)), uses),
            busy=draw(st.booleans()),
            pinned=draw(st.booleans()),
            hold=draw(st.sampled_from([0.0, 5.0])),
            busy_hold=draw(st.sampled_from([0.0, 1.0, 100.0])),
        )
        for number in range(count)
    ]


@given(
    residencies(), st.integers(0, 120), st.integers(1, 120), st.integers(0, 40), st.floats(0, 200)
)
def test_a_plan_makes_room_and_takes_nothing_it_must_not(
    present: list[Residency], need: int, limit: int, reserve: int, waited: float
) -> None:
    made = plan(need, limit, reserve, present, NOW, waited)
    by_key = {one.key: one for one in present}
    pinned = sum(one.bytes for one in present if one.pinned)
    if isinstance(made, Never):
        assert need > limit - pinned
        assert made.most == max(0, limit - pinned)
    elif isinstance(made, Wait):
        assert any(one.busy and not one.pinned for one in present)
    else:
        victims = [by_key[key] for key in made.keys]
        left = sum(one.bytes for one in present) - sum(one.bytes for one in victims)
        assert need + left <= limit
        for one in victims:
            assert not one.pinned
            turn = max(one.busy_hold, one.hold)
            assert not one.busy or min(waited, NOW - one.loaded) >= turn


@given(residencies(), st.integers(0, 120), st.integers(1, 120), st.integers(0, 40))
def test_nobody_is_evicted_who_need_not_be(
    present: list[Residency], need: int, limit: int, reserve: int
) -> None:
    made = plan(need, limit, reserve, present, NOW)
    taken = sum(one.bytes for one in present)
    if isinstance(made, Evict) and made.keys:
        freed = sum(one.bytes for one in present if one.key in made.keys)
        for one in present:
            if one.key in made.keys and one.bytes:
                # With the reserve, or without it where it cannot be had.
                assert need + taken - (freed - one.bytes) > limit - reserve


@given(residencies(), st.integers(0, 120), st.integers(1, 120), st.randoms())
def test_the_order_of_the_models_changes_nothing(
    present: list[Residency], need: int, limit: int, random: object
) -> None:
    shuffled = present[:]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    made, again = plan(need, limit, 0, present, NOW), plan(need, limit, 0, shuffled, NOW)
    assert type(made) is type(again)
    if isinstance(made, Evict) and isinstance(again, Evict):
        assert set(made.keys) == set(again.keys)


def test_the_model_that_has_been_quiet_for_longest_goes_first() -> None:
    present = [residency("a", used=990.0), residency("b", used=10.0), residency("c", used=999.0)]
    assert plan(10, 30, 0, present, NOW) == Evict(("b",))


def test_a_model_that_takes_long_to_load_outlives_one_that_does_not() -> None:
    present = [
        residency("quick", seconds=0.1, used=990.0),
        residency("slow", seconds=60.0, used=980.0),
    ]
    assert plan(10, 20, 0, present, NOW) == Evict(("quick",))


def test_a_model_used_often_outlives_one_that_was_used_just_now() -> None:
    often = dataclasses.replace(residency("often"), habit=Habit(0.0, NOW - 2, 5.0, 10.0))
    once = dataclasses.replace(residency("once"), habit=Habit(NOW - 30).after_use(NOW))
    assert plan(10, 20, 0, [often, once], NOW) == Evict(("once",))


def test_what_is_held_goes_only_if_there_is_no_other_way() -> None:
    held = residency("held", seconds=0.0, loaded=NOW - 1, hold=60.0)
    other = residency("other", seconds=60.0, used=NOW)
    assert plan(10, 20, 0, [held, other], NOW) == Evict(("other",))
    assert plan(20, 20, 0, [held, other], NOW) == Evict(("other", "held"))


def test_a_busy_model_goes_after_its_turn_and_only_for_one_that_has_waited_as_long() -> None:
    fresh = residency("fresh", loaded=NOW - 1, busy=True, busy_hold=4.0)
    assert plan(10, 10, 0, [fresh], NOW, waited=60.0) == Wait()
    ripe = dataclasses.replace(fresh, loaded=NOW - 5)
    assert plan(10, 10, 0, [ripe], NOW, waited=1.0) == Wait()
    assert plan(10, 10, 0, [ripe], NOW, waited=4.0) == Evict(("fresh",))


def test_two_models_that_are_always_busy_and_do_not_fit_take_turns() -> None:
    inside, outside, since, now, changes = "a", "b", 0.0, 0.0, []
    asked = 0.0
    while now < 100.0:
        now += 0.5
        there = residency(inside, loaded=since, busy=True, busy_hold=4.0)
        if isinstance(plan(10, 10, 0, [there], now, now - asked), Evict):
            inside, outside, since, asked = outside, inside, now, now
            changes.append(now)
    assert len(changes) == 25
    assert inside == "b"


def test_the_reserve_is_given_up_before_a_model_is_refused() -> None:
    pinned = residency("pinned", 50, pinned=True)
    assert plan(45, 100, 20, [pinned], NOW) == Evict()
    assert plan(51, 100, 20, [pinned], NOW) == Never(50)


def test_models_go_when_they_have_been_idle_for_long_enough() -> None:
    present = [
        residency("gone", used=900.0, idle=60.0),
        residency("used", used=990.0, idle=60.0),
        residency("new", loaded=990.0, used=0.0, idle=60.0),
        residency("busy", used=0.0, idle=60.0, busy=True),
        residency("pinned", used=0.0, idle=60.0, pinned=True),
        residency("for ever", used=0.0),
    ]
    assert expired(present, NOW) == ["gone"]


def test_the_reserve_is_the_largest_need_of_late_within_its_bounds() -> None:
    reserve = Reserve(10, 100, span=60.0)
    assert reserve.bytes == 10
    reserve.note(50, 0.0)
    reserve.note(20, 30.0)
    assert reserve.bytes == 50
    reserve.note(20, 70.0)
    assert reserve.bytes == 50
    reserve.note(20, 140.0)
    assert reserve.bytes == 20
    reserve.note(1000, 141.0)
    assert reserve.bytes == 100
