"""How batches are cut: the arithmetic."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sublet.inside.training.remembered import Remembered
from sublet.inside.training.sizes import (
    Need,
    fitting,
    largest_part,
    need_of,
    parts,
    tried_rows,
)

rows = st.integers(1, 5000)
sizes = st.integers(1, 6000)
amounts = st.floats(0, 1e12)


@given(rows, sizes)
def test_every_row_is_in_one_part_and_none_is_larger_than_allowed(rows: int, most: int) -> None:
    cut = parts(rows, most)
    assert [row for begin, end in cut for row in range(begin, end)] == list(range(rows))
    assert max(end - begin for begin, end in cut) == largest_part(rows, most) <= most


@given(rows, sizes)
def test_no_part_is_empty_and_there_are_as_few_as_can_be(rows: int, most: int) -> None:
    cut = parts(rows, most)
    assert all(begin < end for begin, end in cut)
    assert len(cut) <= -(-rows // most)


@given(rows, amounts, amounts, st.floats(-1e12, 1e13), amounts)
def test_what_is_chosen_fits_unless_fewer_rows_would_not_help(
    rows: int, fixed: float, row: float, room: float, cost: float
) -> None:
    need = Need(fixed, row)
    chosen = fitting(rows, need, room, cost)
    assert 1 <= chosen <= rows
    if chosen > 1 and row * chosen > 0.05 * (fixed + cost):
        assert need.of(chosen) + (0 if chosen == rows else cost) <= room


@given(st.integers(1, 500), st.integers(1, 500), st.integers(0, 10**9), st.integers(0, 10**6))
def test_two_measurements_give_the_need_of_any_number(
    few: int, more: int, fixed: int, row: int
) -> None:
    points = [(n, fixed + row * n) for n in (few, few + more)]
    need = Need.through(points)
    expected = fixed + row * 10_000
    assert need.of(10_000) >= expected * 0.999 - 1


@given(st.integers(1, 500), st.integers(0, 10**9), st.integers(500, 5000))
def test_one_measurement_does_not_underestimate_more_rows(few: int, taken: int, many: int) -> None:
    assert Need.through([(few, taken)]).of(many) >= taken * 0.999


@given(st.integers(1, 500), st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**6))
def test_the_need_of_more_rows_is_not_underestimated(
    few: int, fixed: int, more: int, row: int
) -> None:
    """`more` is what a step takes for any number of rows, beside what is known."""
    points = [(n, fixed + more + row * n) for n in (few, 2 * few)]
    for many in (2 * few, 4 * few, 16 * few):
        assert need_of(points, fixed).of(many) >= (fixed + more + row * many) * 0.999
    noisy = [points[0], (2 * few, fixed)]
    assert need_of(noisy, fixed).of(2 * few) >= fixed + 0.79 * row * 2 * few


@given(rows)
def test_at_least_one_row_and_never_the_batch_is_tried(rows: int) -> None:
    tried = tried_rows(rows)
    assert tried == sorted(set(tried))
    assert tried[0] >= 1
    assert tried[-1] <= max(1, rows // 4)


def test_what_was_found_is_known_under_the_same_limit_only(tmp_path: Path) -> None:
    path = str(tmp_path / "new" / "program.json")
    Remembered(path).keep("model", 64, 1000)
    Remembered(path).keep("other", 8, 1000)
    assert Remembered(path).get("model", 1010) == 64
    assert Remembered(path).get("other", 1000) == 8
    assert Remembered(path).get("model", 2000) == 0
    Remembered(path).keep("model", 128, 2000)
    assert Remembered(path).get("model", 2000) == 128


def test_a_file_that_makes_no_sense_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "program.json"
    for text in ("", "{", '[["model"]]', '[["model", -3, 1000]]', '{"model": 3}', "7"):
        path.write_text(text)
        assert Remembered(str(path)).get("model", 1000) == 0
    assert Remembered("").get("model", 1000) == 0
    Remembered("").keep("model", 1, 1)
