"""Promises of the statistics and of how figures are written."""

import pytest

from bench import figures


def test_what_drifts_from_round_to_round_cancels_in_a_paired_ratio() -> None:
    """The machine slows down tenfold; the ratio does not move."""
    base = [1.0, 2.0, 10.0]
    assert figures.paired_ratio([1.1, 2.2, 11.0], base) == pytest.approx(1.1)


def test_rounds_that_do_not_pair_are_refused() -> None:
    """No round is silently dropped."""
    with pytest.raises(ValueError, match="2 rounds beside 1"):
        figures.paired_ratio([1.0, 2.0], [1.0])


def test_one_wild_round_does_not_move_the_median() -> None:
    """Medians everywhere."""
    assert figures.median([1.0, 1.1, 50.0]) == 1.1


def test_an_interval_holds_its_middle_and_narrows_with_the_rounds() -> None:
    """The same rounds always give the same interval."""
    few, many = [1.0, 1.1, 1.2, 1.3], [1.0, 1.1, 1.2, 1.3] * 25
    wide = figures.paired_interval(few, [1.0] * 4)
    narrow = figures.paired_interval(many, [1.0] * 100)
    assert wide[1] == pytest.approx(1.15)
    assert wide[0] < wide[1] < wide[2]
    assert narrow[2] - narrow[0] < wide[2] - wide[0]
    assert wide == figures.paired_interval(few, [1.0] * 4)


def test_the_spread_is_half_the_range_over_the_median() -> None:
    """Plus or minus that share."""
    assert figures.spread([9.0, 10.0, 11.0]) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0451, "45.1 ms"), (0.9999, "1000 ms"), (2.094, "2.09 s"), (23.14, "23.1 s")],
)
def test_seconds_have_three_digits(value: float, text: str) -> None:
    """And the unit that suits them."""
    assert figures.seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(58.31, "58.3x"), (9.996, "10.0x"), (123.4, "123x")])
def test_ratios_have_three_digits(value: float, text: str) -> None:
    """Also where rounding gains one."""
    assert figures.times(value) == text


def test_a_change_has_a_sign() -> None:
    """Gains and costs are told apart."""
    assert figures.percent(0.012) == "+1.2 %"
    assert figures.percent(-0.012) == "-1.2 %"
