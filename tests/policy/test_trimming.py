"""When a program has settled, and what it may keep."""

from hypothesis import given
from hypothesis import strategies as st

from sublet.policy.trimming import WATCHED, Sample, thinned, trimmed
from sublet.units import GiB, MiB


def life(*peaks: int, seconds: float = 60.0) -> list[Sample]:
    """Samples at even distances over so many seconds."""
    step = seconds / max(1, len(peaks) - 1)
    return [Sample(place * step, peak // 2, peak) for place, peak in enumerate(peaks)]


def test_a_program_that_has_settled_keeps_its_peak_and_a_margin() -> None:
    reserved = trimmed(life(50 * MiB, *[200 * MiB] * 9), 4 * GiB)
    assert reserved is not None
    assert 230 * MiB < reserved < 260 * MiB


def test_a_program_that_still_grows_is_left_alone() -> None:
    assert trimmed(life(*(number * 20 * MiB for number in range(1, 10))), 4 * GiB) is None
    assert trimmed(life(*[200 * MiB] * 6, 300 * MiB), 4 * GiB) is None


def test_a_program_that_was_hardly_watched_is_left_alone() -> None:
    assert trimmed(life(*[200 * MiB] * 9, seconds=WATCHED - 1), 4 * GiB) is None
    assert trimmed([], 4 * GiB) is None


def test_a_program_that_has_not_begun_is_left_alone() -> None:
    """It reads its data, perhaps on a machine under load, and has a few constants."""
    for peak in (0, 57 << 10):
        assert trimmed(life(*[peak] * 9, seconds=3600), 4 * GiB) is None


def test_a_program_keeps_what_it_needed_before() -> None:
    settled = life(*[200 * MiB] * 9)
    assert trimmed(settled, 4 * GiB, needed=GiB) == GiB
    assert trimmed(settled, 4 * GiB, needed=100 * MiB) == trimmed(settled, 4 * GiB)
    assert trimmed(settled, 1100 * MiB, needed=GiB) is None


def test_little_room_is_not_worth_it() -> None:
    assert trimmed(life(*[200 * MiB] * 9), 290 * MiB) is None


@given(
    st.lists(st.integers(0, 4 * GiB), min_size=1, max_size=40),
    st.integers(16 * MiB, 80 * GiB),
    st.floats(1, 1e5),
)
def test_a_lease_is_only_ever_made_smaller_and_never_below_the_peak(
    growth: list[int], ceiling: int, seconds: float
) -> None:
    samples = life(*sorted(growth), seconds=seconds)
    reserved = trimmed(samples, ceiling)
    assert reserved is None or max(growth) < reserved < ceiling


@given(st.lists(st.integers(0, 4 * GiB), min_size=1, max_size=300))
def test_a_history_stays_short_and_keeps_its_ends(growth: list[int]) -> None:
    samples = life(*sorted(growth))
    reserved: list[Sample] = []
    for sample in samples:
        reserved = thinned([*reserved, sample])
    assert len(reserved) <= 65
    assert reserved[0] == samples[0]
    assert reserved[-1] == samples[-1]
