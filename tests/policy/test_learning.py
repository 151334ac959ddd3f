"""What runs of a program teach about its next one."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from sublet.domain.history import Forecast, History, Point, Run
from sublet.domain.memory import Auto
from sublet.policy.learning import RECENT, learn
from sublet.policy.sizing import DEFAULT_SHARE, IDLE_SHARE, learned_ceiling, size
from sublet.units import GiB, KiB, MiB
from support.jobs import device

ROOMY = 80 * GiB
SHARE = int(ROOMY * DEFAULT_SHARE)
SPARE = 128 * MiB
peaks = st.integers(8 * MiB, 8 * GiB)


def run(peak: int | None, ceiling: int = ROOMY, **more: object) -> Run:
    return replace(Run(1, 1.0, ceiling, peak), **more)


def given_by(*runs: Run, batch: int | None = None, forecast: Forecast | None = None) -> int:
    """The ceiling that `auto` takes after these runs, the latest first."""
    return learned_ceiling(learn(History(runs, batch, forecast)).evidence, ROOMY)


@given(st.lists(peaks, min_size=1, max_size=30))
def test_a_lease_is_never_below_a_good_recent_peak(seen: list[int]) -> None:
    assert given_by(*map(run, seen)) >= max(seen[:RECENT])


@given(peaks, st.integers(1, RECENT - 1))
def test_the_lease_tightens_with_every_run_that_shows_the_same(peak: int, runs: int) -> None:
    fewer, more = (given_by(*[run(peak)] * count) for count in (runs, runs + 1))
    assert peak < more <= fewer


@given(peaks, st.floats(0.0, 0.2), st.floats(0.0, 0.2))
def test_runs_that_lie_further_apart_get_no_smaller_lease(
    peak: int, one: float, other: float
) -> None:
    near, far = sorted((one, other))
    leases = [
        given_by(*(run(int(peak * (1 + share))) for share in (0, apart, -apart, apart, 0)))
        for apart in (near, far)
    ]
    assert leases[0] <= leases[1]


@given(peaks, st.integers(1, RECENT), st.floats(1.0, 4.0))
def test_a_program_that_needs_more_gets_more(peak: int, runs: int, factor: float) -> None:
    smaller, larger = (given_by(*[run(int(peak * by))] * runs) for by in (1.0, factor))
    assert smaller <= larger


@given(peaks, st.floats(1.2, 8.0))
def test_one_odd_run_does_not_widen_the_margin_above_itself(peak: int, factor: float) -> None:
    odd = int(peak * factor)
    lease = given_by(run(odd), *[run(peak)] * (RECENT - 1))
    assert odd < lease <= max(odd * 1.09, odd + SPARE) + 2 * MiB


@given(peaks, st.floats(1.2, 10.0))
def test_one_odd_run_is_forgotten(peak: int, factor: float) -> None:
    before = given_by(*[run(peak)] * RECENT)
    assert given_by(*[run(peak)] * RECENT, run(int(peak * factor))) == before


@given(st.lists(peaks, min_size=1, max_size=8), st.integers(64 * MiB, 2 * GiB))
def test_a_lease_is_never_above_what_the_device_can_give(seen: list[int], ever: int) -> None:
    known = learn(History(tuple(map(run, seen)))).evidence
    chosen = size(Auto(), device(capacity=2 * GiB), ever, ever, known)
    assert chosen is not None
    assert chosen.ceiling <= ever


@given(peaks, st.integers(1, 20))
def test_a_program_that_fills_whatever_it_is_given_is_not_given_more_and_more(
    peak: int, more: int
) -> None:
    """A large piece takes all of the chunk it is put into, so the peak is the ceiling."""
    runs = [run(peak)]
    leases = []
    for _ in range(RECENT + more):
        leases.append(given_by(*runs))
        runs.insert(0, run(leases[-1], ceiling=leases[-1]))
    assert leases[0] <= leases[1] <= leases[0] * 1.08 + MiB
    assert set(leases[1:]) == {leases[1]}


def test_a_ceiling_that_was_filled_once_gets_a_margin() -> None:
    assert given_by(run(300 * MiB, ceiling=300 * MiB)) > 350 * MiB


@given(peaks, st.integers(1, 10))
def test_what_says_little_is_a_lower_bound_and_no_more(peak: int, runs: int) -> None:
    """Runs of another text, runs that failed, a run with other arguments: the program gets what an
    unknown one gets, and never less than it was seen to hold."""
    for weak in (
        [run(peak, edited=True)] * runs,
        [run(peak, good=False)] * runs,
        [run(peak, likeness="other")] * min(runs, 2),
    ):
        assert given_by(*weak) == SHARE
        assert given_by(*(replace(one, peak=100 * peak) for one in weak)) > 100 * peak
        # One good run of its own is enough to be sized by it.
        assert given_by(run(peak), *weak) < SHARE


@given(peaks, st.floats(1.1, 20.0))
def test_no_lease_is_below_what_the_program_was_ever_seen_to_hold(peak: int, factor: float) -> None:
    """Also in a run that failed, or that somebody ended."""
    more = int(peak * factor)
    assert given_by(run(peak), run(more, good=False)) >= more
    assert given_by(run(more, good=False), run(peak)) >= more


@given(st.integers(1, RECENT))
def test_a_program_that_does_not_use_tensorflow_holds_little_of_the_device(runs: int) -> None:
    assert given_by(*[run(None)] * runs) == int(ROOMY * IDLE_SHARE)
    # It is not believed of one that failed before it came to that, or that was edited since.
    assert given_by(run(None, good=False), *[run(None)] * runs) == SHARE
    assert given_by(*[run(None, edited=True)] * runs) == SHARE


@given(peaks, st.integers(SPARE, 8 * GiB))
def test_what_ran_out_of_memory_gets_at_least_twice_as_much(peak: int, failed: int) -> None:
    out = run(failed, ceiling=failed, exceeded=True, good=False)
    assert given_by(out) >= max(2 * failed, SHARE)
    assert given_by(out, run(peak, ceiling=failed)) >= 2 * failed


def test_an_edited_program_that_needs_twenty_times_as_much_dies_at_most_once() -> None:
    """On a device on which there is room for it."""
    need, runs = 20 * 400 * MiB, [run(400 * MiB, edited=True)] * 3
    for _ in range(2):
        lease = given_by(*runs)
        if lease >= need:
            break
        runs.insert(0, run(lease, ceiling=lease, exceeded=True, good=False))
    assert lease >= need


@given(st.integers(64, 1024), st.floats(1.01, 1.9), st.integers(1, 15))
def test_what_was_enough_after_a_failure_is_given_from_then_on(
    failed: int, factor: float, good: int
) -> None:
    """Not less again, because a good run happened to hold less."""
    out = run(failed * MiB, ceiling=failed * MiB, exceeded=True, good=False)
    enough = int(failed * factor) * MiB + MiB
    later = [run(failed * MiB // 2, ceiling=enough)] * good
    assert enough <= given_by(*later, out, run(failed * MiB // 2, ceiling=failed * MiB))


def test_what_failed_with_a_smaller_batch_fails_with_a_larger_one() -> None:
    out = run(None, ceiling=GiB, exceeded=True, good=False, likeness="batch", batch=32)
    assert learn(History((out,), batch=64)).evidence.failed_at == GiB
    assert learn(History((out, run(1, likeness="same")), batch=16)).evidence.failed_at == 0


# The batch size.


def at_batch(batch: int, base: int = 100 * MiB, each: int = MiB) -> Run:
    return run(base + each * batch, likeness="batch", batch=batch)


@given(
    st.integers(0, 2 * GiB),
    st.integers(0, 16 * MiB),
    st.lists(st.integers(1, 512), min_size=2, max_size=8, unique=True),
    st.integers(1, 1024),
)
def test_a_peak_that_is_affine_in_the_batch_is_found(
    base: int, each: int, batches: list[int], wanted: int
) -> None:
    assume(wanted <= 8 * max(batches))
    runs = tuple(at_batch(batch, base, each) for batch in batches)
    lesson = learn(History(runs, wanted))
    assert lesson.line is not None
    due = base + each * wanted
    assert lesson.evidence.peak == pytest.approx(due, abs=2 + 1e-6 * due)
    assert given_by(*runs, batch=wanted) > due


@given(st.integers(2, 40).map(lambda factor: factor / 2), st.integers(0, 6))
def test_one_odd_run_does_not_bend_the_line(factor: float, place: int) -> None:
    runs = [at_batch(batch) for batch in (8, 16, 32, 64, 128, 192, 256)]
    odd = runs[place]
    runs[place] = replace(odd, peak=int((odd.peak or 0) * factor))
    known = learn(History(tuple(runs), 96)).evidence
    assert known.peak == pytest.approx(196 * MiB, rel=0.1)


def test_further_from_what_was_seen_the_margin_is_wider() -> None:
    runs = tuple(at_batch(batch) for batch in (16, 32, 64))
    margins = [learn(History(runs, batch)).evidence.margin or 0 for batch in (48, 128, 256, 512)]
    assert margins == sorted(set(margins))


def test_a_line_is_not_followed_out_of_sight() -> None:
    """Beyond, the peak is taken to grow in proportion, which is more than it does."""
    runs = tuple(at_batch(batch) for batch in (16, 32))
    lesson = learn(History(runs, 1024))
    assert lesson.line is None
    assert lesson.evidence.peak == 132 * 32 * MiB


@given(st.integers(1, 1024), st.integers(1, 1024))
def test_one_batch_size_gives_an_upper_bound_for_the_others(seen: int, wanted: int) -> None:
    known = learn(History((at_batch(seen),), wanted)).evidence
    assert known.peak is not None
    assert known.peak >= (at_batch(wanted).peak or 0) - 1 or wanted < seen
    assert known.peak >= (at_batch(seen).peak or 0)


def test_runs_with_the_same_arguments_count_more_than_a_line() -> None:
    same = run(500 * MiB, batch=64)
    known = learn(History((at_batch(32), same, at_batch(128)), 64))
    assert known.evidence.peak == 500 * MiB
    assert known.counted == (same,)


# Probes.

FORECAST = Forecast(200 * MiB, 150 * MiB, 250 * MiB, (Point(1.0, 200 * MiB),), "short runs")


def test_a_probe_counts_until_the_program_has_run() -> None:
    assert given_by(forecast=FORECAST) > FORECAST.high
    assert given_by(run(16 * MiB), forecast=FORECAST) < FORECAST.low


def test_a_probe_counts_more_than_runs_with_other_arguments() -> None:
    other = run(GiB, likeness="other")
    assert learn(History((other,) * 3, None, FORECAST)).evidence.peak == FORECAST.high


@pytest.mark.parametrize("changes", [{"edited": True}, {"complete": False}])
def test_a_probe_of_another_text_or_one_that_was_cut_short_is_not_believed(
    changes: dict[str, bool],
) -> None:
    """A program that stops after its first lines has held next to nothing by then."""
    doubtful = replace(FORECAST, **changes)
    assert given_by(forecast=doubtful) == SHARE
    assert given_by(forecast=replace(doubtful, high=40 * GiB)) > 40 * GiB


# Other arguments.


def test_several_runs_with_other_arguments_are_believed_if_they_agree() -> None:
    """The jobs of a sweep differ in their arguments and need the same."""
    seeds = [run(500 * MiB + number * MiB, likeness="other") for number in range(3)]
    known = learn(History(tuple(seeds))).evidence
    assert (known.peak, known.same_arguments) == (502 * MiB, False)
    assert given_by(*seeds) < SHARE
    assert given_by(run(2 * GiB, likeness="other"), *seeds[:2], run(GiB, likeness="other")) == SHARE
    # One that is odd shows that arguments matter, however well the others agree.
    assert given_by(run(2 * GiB, likeness="other"), *seeds) == SHARE


def test_small_programs_with_other_arguments_agree_though_their_peaks_differ_by_a_factor() -> None:
    """A few MiB more or less are nothing next to the smallest lease."""
    small = [run(peak, likeness="other") for peak in (100 * KiB, 300 * KiB, 12 * MiB)]
    assert learn(History(tuple(small))).evidence.peak == 12 * MiB
    assert given_by(*small) < SHARE
    assert given_by(run(40 * MiB, likeness="other"), *small) == SHARE


# What the process costs.


def test_what_a_process_costs_is_learned_for_each_way_of_starting() -> None:
    cold = run(100 * MiB, outside=600 * MiB, start="cold")
    warm = run(100 * MiB, outside=30 * MiB, start="warm")
    fresh = run(100 * MiB, outside=610 * MiB, start="fresh")
    for start, expected in (("warm", 30 * MiB), ("cold", 600 * MiB), ("lodger", None)):
        assert learn(History((cold, warm), start=start)).evidence.outside == expected
    # It could have been warm and was not: so it will be again.
    assert learn(History((fresh, cold), start="warm")).evidence.outside == 610 * MiB
