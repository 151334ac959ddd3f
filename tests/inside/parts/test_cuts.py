"""Cuts make the largest part as small as it can be."""

import itertools
import random

import pytest

from sublet.inside.parts.cuts import balanced


def largest(costs: list[int], arriving: list[int], begins: tuple[int, ...]) -> int:
    edges = [0, *begins, len(costs)]
    return max(
        sum(costs[begin:end]) + (arriving[begin] if begin else 0)
        for begin, end in itertools.pairwise(edges)
    )


@pytest.mark.parametrize(
    ("costs", "parts", "begins"),
    [
        ([1, 1, 1, 1], 2, [2]),
        ([5, 1, 1, 1, 1, 1], 2, [1]),
        ([1, 1, 1, 9], 2, [3]),
        ([2, 2, 2], 3, [1, 2]),
        ([0, 0], 2, [1]),
    ],
)
def test_parts_are_even(costs: list[int], parts: int, begins: list[int]) -> None:
    assert balanced(costs, [0] * len(costs), parts) == begins


def test_what_has_to_be_brought_over_counts() -> None:
    assert balanced([4, 4, 4, 4], [0, 0, 9, 0], 2) == [1]


def test_a_model_is_not_cut_where_it_must_not_be() -> None:
    assert balanced([1, 1, 1, 1], [0, -1, -1, 0], 2) == [3]
    assert balanced([1, 1, 1, 1], [0, -1, -1, 0], 3) is None
    assert balanced([1], [0], 2) is None


def test_no_other_cut_is_better() -> None:
    draw = random.Random(1)
    for _ in range(200):
        costs = [draw.randrange(20) for _ in range(draw.randrange(2, 9))]
        arriving = [draw.choice([-1, 0, 3, 8]) for _ in costs]
        parts = draw.randrange(2, 5)
        allowed = [begin for begin in range(1, len(costs)) if arriving[begin] >= 0]
        every = list(itertools.combinations(allowed, parts - 1))
        found = balanced(costs, arriving, parts)
        if found is None:
            assert not every
        else:
            best = min(largest(costs, arriving, begins) for begins in every)
            assert largest(costs, arriving, tuple(found)) == best
