"""How large a lease is."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from sublet.domain.memory import Auto, Exactly, Grow, MemoryAsk, Share
from sublet.errors import BadRequest, TooLarge
from sublet.policy.sizing import (
    SMALLEST,
    Evidence,
    after_failure,
    ceiling_for,
    check,
    doubt,
    round_up,
    size,
    spare,
    with_margin,
)
from sublet.units import GiB, MiB, format_bytes
from support.jobs import asks, device

CPU = device(capacity=2 * GiB)
MOST = 1800 * MiB

capacities = st.integers(64 * MiB, 80 * GiB)
evidence = st.builds(
    Evidence,
    peak=st.none() | st.integers(0, 20 * GiB),
    runs=st.integers(0, 5),
    same_arguments=st.booleans(),
    outside=st.none() | st.integers(0, GiB),
    failed_at=st.just(0) | st.integers(SMALLEST, 20 * GiB),
    margin=st.none() | st.floats(0, 3),
    enough=st.just(0) | st.integers(1, 20 * 1024).map(lambda amount: amount * MiB),
)


@given(
    asks,
    capacities,
    st.integers(-GiB, 80 * GiB),
    st.integers(-GiB, 80 * GiB),
    evidence,
    st.just(0) | st.integers(0, GiB),
)
def test_a_ceiling_is_one_tensorflow_starts_in_and_the_device_can_give_in_whole_mebibytes(
    ask: MemoryAsk, capacity: int, free: int, ever: int, known: Evidence, least: int
) -> None:
    chosen = size(ask, device(capacity=capacity), free, ever, known, least)
    if chosen is not None:
        assert SMALLEST <= chosen.ceiling <= free
        assert not chosen.roomy or (isinstance(ask, Auto | Grow) and known.peak is not None)
        assert chosen.ceiling % MiB == 0
        assert chosen.ceiling >= least // MiB * MiB
        assert chosen.basis


@given(st.integers(SMALLEST, 4 * GiB), evidence)
def test_a_ceiling_that_was_asked_is_given_or_nothing_is(wanted: int, known: Evidence) -> None:
    whole = wanted // MiB * MiB
    chosen = size(Exactly(wanted), CPU, whole, whole, known)
    assert chosen is not None
    assert chosen.ceiling == whole
    assert size(Exactly(wanted), CPU, whole - 1, whole, known) is None


def test_a_share_is_a_share_of_the_whole_device_and_not_of_what_is_free() -> None:
    chosen = size(Share(0.25), CPU, 600 * MiB, MOST, Evidence())
    assert chosen is not None
    assert chosen.ceiling == 512 * MiB
    assert chosen.basis == "25% of cpu"


def test_grow_begins_with_little_or_with_what_is_known_to_be_needed() -> None:
    chosen = size(Grow(), CPU, MOST, MOST, Evidence())
    assert chosen is not None
    assert (chosen.ceiling, chosen.most) == (40 * MiB, MOST)
    known = Evidence(peak=GiB, runs=3)
    assert size(Grow(), CPU, MOST, MOST, known) == size(Auto(), CPU, MOST, MOST, known)


def test_auto_takes_a_stated_share_for_a_program_that_was_never_measured() -> None:
    chosen = size(Auto(), CPU, MOST, MOST, Evidence())
    assert chosen is not None
    assert chosen.ceiling == 512 * MiB
    assert chosen.basis == "default, 25% of cpu: no earlier run"


def test_auto_waits_for_its_share_rather_than_take_crumbs() -> None:
    assert size(Auto(), CPU, 512 * MiB - 1, MOST, Evidence()) is None
    assert size(Auto(), CPU, 512 * MiB, MOST, Evidence()) is not None


def test_auto_takes_less_than_its_share_where_the_device_can_never_give_that() -> None:
    chosen = size(Auto(), CPU, 300 * MiB, 300 * MiB, Evidence())
    assert chosen is not None
    assert chosen.ceiling == 300 * MiB
    assert size(Auto(), CPU, 299 * MiB, 300 * MiB, Evidence()) is None


@given(capacities, evidence, st.data())
def test_auto_always_fits_the_empty_device_whatever_was_learned(
    capacity: int, known: Evidence, data: st.DataObject
) -> None:
    ever = data.draw(st.integers(SMALLEST, capacity))
    chosen = size(Auto(), device(capacity=capacity), ever, ever, known)
    assert chosen is not None
    assert chosen.ceiling <= ever


@given(st.integers(0, 400 * GiB // 1000), st.integers(0, 400 * GiB // 1000))
def test_auto_gives_more_to_a_program_that_used_more(one: int, other: int) -> None:
    smaller, larger = (
        size(Auto(), CPU, 100 * GiB, 100 * GiB, Evidence(peak=peak, runs=1))
        for peak in sorted((one, other))
    )
    assert smaller is not None
    assert larger is not None
    assert SMALLEST <= smaller.ceiling <= larger.ceiling
    assert larger.ceiling > max(one, other)


@given(st.integers(0, GiB), st.integers(SMALLEST, GiB))
def test_auto_gives_more_than_what_has_failed(peak: int, failed: int) -> None:
    for known in (Evidence(failed_at=failed), Evidence(peak=peak, runs=1, failed_at=failed)):
        chosen = size(Auto(), CPU, 100 * GiB, 100 * GiB, known)
        assert chosen is not None
        assert chosen.ceiling > failed


def test_auto_says_what_it_has_learned_from() -> None:
    for known, basis in (
        (Evidence(peak=200 * MiB, runs=1), "peak of 1 earlier run, and a margin"),
        (
            Evidence(peak=200 * MiB, runs=3, same_arguments=False),
            "peak of 3 earlier runs with other arguments, and a margin",
        ),
        (Evidence(failed_at=512 * MiB), "512 MiB was too little before"),
    ):
        chosen = size(Auto(), CPU, MOST, MOST, known)
        assert chosen is not None
        assert chosen.basis == basis


@given(asks.filter(lambda ask: not isinstance(ask, Grow)), st.integers(SMALLEST, 2 * GiB))
def test_a_retry_never_gets_less_than_it_needs(ask: MemoryAsk, least: int) -> None:
    chosen = size(ask, CPU, 100 * GiB, 100 * GiB, Evidence(), least)
    assume(chosen is not None)
    assert chosen is not None
    assert chosen.ceiling >= least // MiB * MiB


@given(st.integers(1, 80 * GiB), st.integers(0, 80 * GiB), st.none() | st.integers(0, 80 * GiB))
@example(1, 0, None)
def test_a_second_try_is_strictly_larger(ceiling: int, peak: int, asked: int | None) -> None:
    larger = after_failure(ceiling, peak, asked)
    assert larger > ceiling
    assert larger > peak + (asked or 0)
    assert larger % MiB == 0


@given(st.integers(0, 80 * GiB))
def test_a_margin_leaves_room_above_the_peak(peak: int) -> None:
    assert with_margin(peak) > peak
    assert with_margin(peak) % MiB == 0


@given(st.integers(0, 80 * GiB))
def test_rounding_up_adds_less_than_one_mebibyte(amount: int) -> None:
    assert 0 <= round_up(amount) - amount < MiB
    assert round_up(amount) % MiB == 0


@given(st.integers(MOST + 1, 100 * GiB))
def test_more_than_the_device_can_ever_give_is_refused_with_its_capacity(wanted: int) -> None:
    with pytest.raises(TooLarge) as refusal:
        check(Exactly(wanted), CPU, MOST)
    assert format_bytes(CPU.capacity) in refusal.value.message
    assert refusal.value.message.endswith(("1.8 GiB.", "1800 MiB."))
    assert "at most 1.7GiB" in refusal.value.hint


@given(st.integers(MOST + 1, 100 * GiB))
def test_what_is_too_large_by_little_is_not_told_as_the_same_amount(wanted: int) -> None:
    with pytest.raises(TooLarge) as refusal:
        check(Exactly(wanted), CPU, MOST)
    asked, _, rest = refusal.value.message.partition(" will never fit")
    assert not rest.endswith(f"given {asked}.")


def test_the_amount_that_a_refusal_names_is_accepted() -> None:
    check(Exactly(1800 * MiB), CPU, MOST)
    check(Exactly(SMALLEST), CPU, MOST)


def test_a_share_that_leaves_nothing_for_its_process_is_refused_like_an_amount() -> None:
    with pytest.raises(TooLarge, match=r"2\.0 GiB will never fit on cpu: it has 2\.0 GiB"):
        check(Share(1.0), CPU, MOST)


@given(st.integers(0, GiB), st.integers(1, 8))
def test_totals_of_all_shares_fit_the_device_together(overhead: int, parts: int) -> None:
    """A lease is charged with its ceiling and the overhead."""
    shares = [Share(1 / parts, total=True)] * parts
    given = [size(ask, CPU, CPU.capacity, MOST, Evidence(), overhead=overhead) for ask in shares]
    assert sum(one.ceiling + overhead for one in given if one is not None) <= CPU.capacity


def test_a_total_that_its_process_takes_alone_is_refused_with_the_least_that_works() -> None:
    for ask in (Exactly(100 * MiB, total=True), Share(100 / 2048, total=True)):
        with pytest.raises(BadRequest, match=r"itself takes 128 MiB.*Ask for 144MiB or more"):
            check(ask, CPU, MOST, 128 * MiB)
    check(Exactly(144 * MiB, total=True), CPU, MOST, 128 * MiB)


@given(st.integers(1, SMALLEST - 1))
def test_less_than_tensorflow_starts_in_is_refused_with_the_least_that_works(wanted: int) -> None:
    with pytest.raises(BadRequest, match=r"Ask for 16\.0MiB or more") as refusal:
        check(Exactly(wanted), CPU, MOST)
    assert not isinstance(refusal.value, TooLarge)


@pytest.mark.parametrize("ask", [Auto(), Grow(), Exactly(SMALLEST)])
@pytest.mark.parametrize("most", [SMALLEST - 1, 0, -GiB])
def test_a_device_with_no_room_for_any_program_says_so(ask: MemoryAsk, most: int) -> None:
    with pytest.raises(TooLarge) as refusal:
        check(ask, CPU, most)
    assert "raise SUBLET_CPU_MEMORY" in refusal.value.hint
    assert "-" not in refusal.value.message
    with pytest.raises(TooLarge, match="use another device"):
        check(ask, device("gpu0"), most)


@given(st.one_of(st.builds(Exactly, st.integers(1, 3 * GiB)), st.builds(Share, st.floats(0.0, 1))))
def test_what_passes_the_check_fits_an_empty_device(ask: MemoryAsk) -> None:
    try:
        check(ask, CPU, MOST)
    except BadRequest:
        return
    assert size(ask, CPU, MOST, MOST, Evidence()) is not None


# Margins.


@given(st.integers(1, 50), st.integers(1, 50), st.floats(0, 1))
def test_doubt_shrinks_with_every_run_that_shows_the_same_spread(
    one: int, other: int, spread: float
) -> None:
    fewer, more = sorted((one, other))
    usual = doubt(1)
    assert doubt(fewer, min(spread, 0.05)) >= doubt(more, min(spread, 0.05))
    assert doubt(1, spread) == usual


@given(st.integers(2, 50), st.floats(0, 1), st.floats(0, 1))
def test_doubt_grows_with_the_spread(runs: int, one: float, other: float) -> None:
    narrow, wide = sorted((one, other))
    assert doubt(runs, narrow) <= doubt(runs, wide)


@given(evidence)
def test_a_ceiling_is_never_below_the_peak_or_what_was_enough(known: Evidence) -> None:
    ceiling = ceiling_for(known, 2 * GiB)
    assert ceiling >= (known.peak or 0)
    assert known.peak is None or ceiling >= known.enough


@given(st.integers(8 * MiB, 80 * GiB))
def test_one_run_is_enough_for_a_lease_within_three_tenths_of_its_peak(peak: int) -> None:
    """From 16 MiB on; below, the whole MiB that TensorFlow counts in are more than that."""
    assume(peak >= 16 * MiB)
    small = 512 * MiB
    assert ceiling_for(Evidence(peak=peak, runs=1), small) <= 1.32 * peak + spare(small)
