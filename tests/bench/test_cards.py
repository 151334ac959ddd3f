"""A short round of the random programs on two stand-in cards."""

import random

import pytest

from bench import cards

pytestmark = pytest.mark.slow


def test_no_program_is_refused_memory_below_its_ceiling() -> None:
    """One of each way, and three more; three at a time."""
    rng = random.Random(7)
    drawn = [cards.draw(rng) for _ in range(60)]
    each = [next(one for one in drawn if one.way == way) for way in cards.WAYS]
    found = cards.run([*each, *drawn[:3]], 3, seed=7)
    assert (found.wrong, found.refused) == ([], [])
    assert found.ended.total() == len(cards.WAYS) + 3
