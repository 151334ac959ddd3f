"""From a probe's short runs to an interval."""

from hypothesis import given
from hypothesis import strategies as st

from sublet.policy.probe_forecast import Pass, forecast
from sublet.units import GiB, MiB

bases = st.integers(MiB, GiB)
slopes = st.integers(0, 8 * GiB)


def passes(base: int, slope: int, *shares: float, complete: bool = True) -> list[Pass]:
    return [Pass(share, int(base + slope * share), complete, ceiling=80 * GiB) for share in shares]


@given(bases, slopes)
def test_an_affine_peak_is_forecast_from_parts_of_the_batch(base: int, slope: int) -> None:
    told = forecast(passes(base, slope, 0.25, 0.5))
    assert told.low < base + slope < told.high
    assert abs(told.expected - (base + slope)) <= 4


@given(bases, slopes)
def test_a_run_with_the_whole_batch_makes_the_interval_no_wider(base: int, slope: int) -> None:
    parts = forecast(passes(base, slope, 0.25, 0.5))
    whole = forecast(passes(base, slope, 0.25, 0.5, 1.0))
    assert whole.low < base + slope < whole.high
    assert whole.high - whole.low <= parts.high - parts.low + 8


@given(bases, slopes)
def test_a_run_that_was_cut_short_makes_the_interval_wider(base: int, slope: int) -> None:
    whole = forecast(passes(base, slope, 0.25, 0.5))
    cut = forecast(passes(base, slope, 0.25, 0.5, complete=False))
    assert cut.low <= whole.low
    assert cut.high > whole.high
    assert "did not come to its end" in cut.rests_on


@given(bases)
def test_the_interval_holds_the_expected_peak(peak: int) -> None:
    told = forecast([Pass(1.0, peak, scaled=False)])
    assert told.low <= told.expected == peak <= told.high
    assert "none could be made smaller" in told.rests_on


def test_a_probe_that_ran_out_of_memory_expects_more_than_it_had() -> None:
    out = Pass(0.25, 60 * MiB, complete=False, ceiling=64 * MiB, exceeded=True)
    told = forecast([out])
    assert told.high >= 96 * MiB
    assert "ran out of 64.0 MiB" in told.rests_on
