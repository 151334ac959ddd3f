"""Bars and plots say what is so, in the room that there is."""

from hypothesis import given
from hypothesis import strategies as st

from sublet.top.memory_history import Sample
from sublet.top.plot import bar, plot

amounts = st.integers(0, 1000)
samples = st.builds(
    lambda used, more, nursery, others: Sample(used, used + more, nursery, others),
    *[amounts] * 4,
)


@given(samples, st.integers(1, 2000), st.integers(8, 100))
def test_a_bar_is_as_wide_as_its_room_and_leaves_out_nothing_that_fits(
    sample: Sample, capacity: int, width: int
) -> None:
    drawn = bar(sample, capacity, width).plain
    assert len(drawn) == width
    if sample.taken <= capacity and width >= 8 and sample.taken < capacity // 2:
        assert ("▒" in drawn, "░" in drawn) == (sample.nursery > 0, sample.others > 0)


@given(
    st.lists(st.none() | samples, min_size=1, max_size=40),
    st.integers(1, 2000),
    st.integers(3, 20),
    st.booleans(),
)
def test_a_plot_fills_its_lines_and_no_more(
    columns: list[Sample | None], capacity: int, height: int, smooth: bool
) -> None:
    lines = plot("gpu0", columns, capacity, height, "-10 min", smooth).plain.split("\n")
    assert len(lines) == height
    assert all(len(line) <= len(columns) + 9 for line in lines)


def test_parts_are_stacked_from_what_is_used_up() -> None:
    full, empty = Sample(25, 50, 25, 25), Sample(0, 0, 0, 0)
    drawn = plot("gpu0", [None, empty, full], 100, 6, "", smooth=False).plain.split("\n")
    assert [line[9:] for line in drawn[1:5]] == ["  ░", "  ▒", "  ▓", "  █"]


def test_the_smallest_amount_is_seen() -> None:
    drawn = plot("gpu0", [Sample(1, 1, 0, 0)], 10_000, 6, "").plain.split("\n")
    assert drawn[4].endswith("▁")
