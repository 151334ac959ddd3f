"""What runs of a program teach about its next one."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from sublet.domain.history import Forecast, History, Point, Run
from sublet.domain.memory import Auto
from sublet.policy.learning import RECENT, learn
from sublet.policy.sizing import ceiling_for, size
from sublet.units import GiB, MiB
from support.jobs import device

ROOMY = 80 * GiB
peaks = st.integers(8 * MiB, 8 * GiB)


def run(peak: int | None, ceiling: int = ROOMY, **more: object) -> Run:
    return replace(Run(1, 1.0, ceiling, peak), **more)


def given_by(*runs: Run, batch: int | None = None, forecast: Forecast | None = None) -> int:
    """The ceiling that `auto` takes after these runs, the latest first."""
    return ceiling_for(learn(History(runs, batch, forecast)).evidence)


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


@given(peaks, st.floats(1.2, 10.0))
def test_one_odd_run_does_not_widen_the_margin_above_itself(peak: int, factor: float) -> None:
    odd = int(peak * factor)
    lease = given_by(run(odd), *[run(peak)] * (RECENT - 1))
    assert odd < lease <= odd * 1.09 + 2 * MiB


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


@given(peaks)
def test_an_edited_script_has_weaker_evidence_not_none(peak: int) -> None:
    lease = given_by(run(peak))
    assert lease <= given_by(run(peak, edited=True)) < 2 * lease
    assert given_by(run(100 * peak)) < given_by(run(100 * peak, edited=True))
    # One run of the new text is enough to trust it again.
    assert given_by(run(peak), run(peak, edited=True)) <= lease


@given(peaks, st.integers(16 * MiB, 8 * GiB))
def test_a_run_that_ran_out_of_memory_is_a_lower_bound(peak: int, failed: int) -> None:
    out = run(failed, ceiling=failed, exceeded=True, good=False)
    known = learn(History((out, run(peak)))).evidence
    assert known.failed_at == failed
    assert known.peak == peak
    # A later run to a good end settles it.
    assert learn(History((run(peak), out))).evidence.failed_at == 0


@given(peaks, st.integers(1, 15))
def test_a_ceiling_that_has_failed_is_not_tried_again_after_good_runs(peak: int, good: int) -> None:
    failed = given_by(run(peak))
    out = run(failed, ceiling=failed, exceeded=True, good=False)
    assert given_by(*[run(peak)] * good, out, run(peak)) > failed


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
    assert given_by(run(100 * MiB), forecast=FORECAST) < FORECAST.low


def test_a_probe_counts_more_than_runs_with_other_arguments() -> None:
    other = run(GiB, likeness="other")
    assert learn(History((other,), None, FORECAST)).evidence.peak == FORECAST.high
    assert learn(History((other,))).evidence.peak == GiB
    assert not learn(History((other,))).evidence.same_arguments


def test_a_probe_of_another_text_of_the_script_is_weaker() -> None:
    edited = replace(FORECAST, edited=True)
    assert given_by(forecast=FORECAST) < given_by(forecast=edited)
