"""What is kept of the devices' memory over time: thinned, bounded, and never made up."""

import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.broker.usage_history import (
    MOST_EVENTS,
    MOST_FAULTS,
    MOST_HOLDINGS,
    OTHERS,
    UsageHistory,
    largest,
)
from sublet.units import GiB, MiB
from sublet.wire.rows import HoldingRow, LeaseEventKind, LeaseEventRow, UsageRow

DAY = 86_400
AGES = ((300, 1), (3600, 10), (DAY, 60), (7 * DAY, 600))
"""Up to which age, in seconds, there are such periods."""


def row(at: float, used: int, job: int = 1, strangers: int = 0) -> UsageRow:
    return UsageRow(at, strangers, 0, (HoldingRow(job, 2 * GiB, used),))


def event(at: float, kind: LeaseEventKind = "granted", job: int = 1) -> LeaseEventRow:
    return LeaseEventRow(at, "cpu", job, "train.py", 1, kind, GiB)


def recorded(rows: Iterable[UsageRow]) -> tuple[UsageHistory, list[UsageRow]]:
    history, given = UsageHistory(), list(rows)
    for one in given:
        history.record("cpu", one, {holding.job: "train.py" for holding in one.holdings})
    return history, given


def use(one: UsageRow) -> int:
    return one.strangers + one.standing + sum(holding.used for holding in one.holdings)


def held_at(rows: Iterable[UsageRow], at: float) -> UsageRow | None:
    return next((one for one in reversed(list(rows)) if one.at <= at), None)


steps = st.lists(
    st.tuples(
        st.one_of(st.integers(1, 30), st.integers(30, 4000), st.integers(4000, 2 * DAY)),
        st.integers(0, 5).map(lambda amount: amount * MiB),
    ),
    min_size=1,
    max_size=120,
)


def timeline(pairs: list[tuple[int, int]]) -> list[UsageRow]:
    """Samples on half seconds, the last of them at the end of a period of every length."""
    at = [2_000_000_000.5]
    for step, _ in pairs[1:]:
        at.append(at[-1] + step)
    return [row(moment, used) for moment, (_, used) in zip(at, pairs, strict=True)]


@given(steps)
def test_what_is_shown_was_recorded_and_is_in_order(pairs: list[tuple[int, int]]) -> None:
    history, given = recorded(timeline(pairs))
    kept = history.devices()["cpu"]
    assert set(kept) <= set(given)
    assert [one.at for one in kept] == sorted({one.at for one in kept})
    assert use(kept[-1]) == use(given[-1])


@given(steps)
def test_of_each_period_the_fullest_moment_and_the_end_are_kept(
    pairs: list[tuple[int, int]],
) -> None:
    history, given = recorded(timeline(pairs))
    kept, now = history.devices()["cpu"], given[-1].at
    for one in given:
        # One that has outgrown an age is thinned for the next as long as its period fills up.
        length = next((period for age, period in AGES if one.at >= now - age), None)
        if length is None:
            continue
        start = one.at // length * length
        inside = [other for other in kept if start <= other.at < start + length]
        before = held_at(kept, start)
        shown = max(use(other) for other in [*inside, *([before] if before else [])])
        assert shown >= use(one)
        ends = held_at(given, start + length - 0.25)
        shown_end = held_at(kept, start + length - 0.25)
        assert ends is not None
        assert shown_end is not None
        assert use(shown_end) == use(ends)


@pytest.mark.slow
def test_what_weeks_take_is_small_and_flat() -> None:
    """Two jobs that never stand still, and events as often: two samples in each period."""
    history, sizes = UsageHistory(), []
    names = {1: "train.py", 2: "eval.py"}
    tracemalloc.start()
    try:
        for moment in (*range(0, 2 * DAY, 29), *range(2 * DAY, 16 * DAY, 299)):
            holdings = tuple(HoldingRow(job, GiB, (moment * job) % GiB) for job in names)
            history.record("cpu", UsageRow(2e9 + moment, moment % MiB, 0, holdings), names)
            history.note(event(2e9 + moment))
            if moment % DAY < 299:
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    kept = history.devices()["cpu"]
    assert len(kept) < 2 * sum(age // period + 1 for age, period in AGES)
    assert kept[0].at > 2e9 + 9 * DAY - 2 * 600
    assert max(sizes) < 2 * MiB
    assert sizes[-1] < 1.2 * sizes[len(sizes) // 2]


def test_names_are_forgotten_with_the_last_sample_of_their_jobs() -> None:
    history = UsageHistory()
    for number in range(1, 20_000):
        one = UsageRow(2e9 + 600 * number, 0, 0, (HoldingRow(number, GiB, number),))
        history.record("cpu", one, {number: "n" * 1000})
    shown = {one.holdings[0].job for one in history.devices()["cpu"]}
    assert len(history.names(range(20_000))) < 3 * len(shown)
    assert set(history.names(shown)) == shown
    assert len(history.names([19_999])[19_999]) == 100


def test_the_same_again_is_not_kept_twice() -> None:
    history, _ = recorded(row(2e9 + second, GiB) for second in range(100))
    assert [one.at for one in history.devices()["cpu"]] == [2e9]


def test_a_clock_that_is_set_back_leaves_no_future() -> None:
    history, _ = recorded([row(2e9, 1), row(2e9 + 500, 2), row(2e9 + 100, 3)])
    assert [one.at for one in history.devices()["cpu"]] == [2e9, 2e9 + 100]
    for one in (event(2e9), event(2e9 + 500, "failed"), event(2e9 + 100)):
        history.note(one)
    assert [one.at for one in history.events()] == [2e9, 2e9 + 100]


def test_since_gives_the_sample_that_held_then_and_all_after_it() -> None:
    history, given = recorded(row(2e9 + 10 * step, step) for step in range(10))
    for one in given:
        history.note(event(one.at))
    assert history.devices(2e9 + 35)["cpu"] == tuple(given[3:])
    assert history.devices(2e9 + 1e6)["cpu"] == tuple(given[-1:])
    assert [one.at for one in history.events(2e9 + 70)] == [2e9 + 80, 2e9 + 90]


def test_many_events_do_not_push_out_what_went_wrong() -> None:
    history = UsageHistory()
    history.note(event(2e9, "out of memory"))
    for second in range(1, 3 * MOST_EVENTS):
        history.note(event(2e9 + second))
    assert len(history.events()) == MOST_EVENTS + 1
    assert history.events()[0].kind == "out of memory"
    for second in range(3 * MOST_EVENTS, 10 * MOST_EVENTS):
        history.note(event(2e9 + second, "failed"))
    assert len(history.events()) == MOST_EVENTS + MOST_FAULTS


@given(st.lists(st.integers(0, 9), max_size=3 * MOST_HOLDINGS))
@settings(max_examples=50)
def test_of_many_jobs_the_largest_are_told_apart_and_none_is_lost(sizes: list[int]) -> None:
    holdings = [HoldingRow(number, size, size // 2) for number, size in enumerate(sizes, 1)]
    shown = largest(holdings)
    assert len(shown) <= MOST_HOLDINGS
    assert sum(one.used for one in shown) == sum(one.used for one in holdings)
    assert sum(one.charge for one in shown) == sum(one.charge for one in holdings)
    named = [one for one in shown if one.job != OTHERS]
    if len(named) < len(holdings):
        kept = {one.job for one in named}
        left_out = [one for one in holdings if one.job not in kept]
        assert max(one.charge for one in left_out) <= min(one.charge for one in named)
