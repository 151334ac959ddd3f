"""Which jobs are shown, and in which order."""

import pytest

from sublet.top.arrangement import FILTERS, ORDERS, Arrangement, next_of
from sublet.top.live_rows import LiveRows
from support.rows import job_row

ROWS = [
    job_row(1, "b", "running", now=5, peak=50, ceiling=100, since=90.0),
    job_row(2, "a", "running", now=9, peak=10, ceiling=100, since=10.0),
    job_row(3, "d", "waiting"),
    job_row(4, "c", "finished", since=5.0, ran=1.0),
    job_row(5, "e", "finished", since=6.0, ran=2.0),
]


@pytest.mark.parametrize(
    ("order", "numbers"),
    [
        ("state", [1, 2, 3, 5, 4]),
        ("memory", [2, 1, 3, 4, 5]),
        ("peak", [1, 2, 3, 4, 5]),
        ("elapsed", [2, 1, 5, 4, 3]),
        ("name", [2, 1, 4, 3, 5]),
        ("number", [1, 2, 3, 4, 5]),
    ],
)
def test_each_order(order: str, numbers: list[int]) -> None:
    groups = Arrangement(order=order).groups(ROWS, 100.0)
    assert [group[0].id for group in groups] == numbers


def test_every_order_and_filter_comes_round() -> None:
    for choices in (ORDERS, FILTERS):
        seen = [choices[0]]
        while (one := next_of(choices, seen[-1])) != choices[0]:
            seen.append(one)
        assert tuple(seen) == choices


def test_estimates_go_on_while_no_news_comes() -> None:
    first, second = job_row(1, "a", "running", ends_in=60.0), job_row(2, "b", "waiting")
    rows = LiveRows()
    rows.take({1: first, 2: second}, 100.0)
    rows.take({1: first, 2: second}, 110.0)
    assert [row.ends_in for row in rows.at(130.0)] == [30.0, None]
    assert rows.at(500.0)[0].ends_in == 0.0
    rows.take({1: job_row(1, "a", "running", ends_in=90.0)}, 130.0)
    assert [row.ends_in for row in rows.at(140.0)] == [80.0]
