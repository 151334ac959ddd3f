"""Front ends refuse what would find its queue full, and let in what has a place."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.errors import ServingError
from sublet.serving.frontend.backpressure import Backpressure, DelayedRefusals

A, B = ("a", 1), ("b", 1)


@pytest.fixture
def backpressure() -> Backpressure:
    backpressure = Backpressure()
    backpressure.full(A, "a is full", now=10.0)
    return backpressure


def test_a_full_queue_is_believed_to_be_full_for_a_moment(backpressure: Backpressure) -> None:
    with pytest.raises(ServingError, match="a is full"):
        backpressure.check(A, now=10.0)
    backpressure.check(A, now=11.0)
    backpressure.check(A, now=10.0)  # Nothing is believed of it any more.


def test_other_models_are_let_through(backpressure: Backpressure) -> None:
    backpressure.done(B)
    backpressure.check(B, now=10.0)
    backpressure.check(("a", 2), now=10.0)


def test_a_call_with_much_more_time_than_the_refused_one_asks_the_engine() -> None:
    backpressure = Backpressure()
    backpressure.full(A, "a is full", now=10.0, deadline=11.0)
    backpressure.check(A, now=10.0)
    backpressure.check(A, now=10.0, deadline=12.0)
    with pytest.raises(ServingError, match="a is full"):
        backpressure.check(A, now=10.0, deadline=11.1)


def test_who_is_refused_again_has_used_up_all_places(backpressure: Backpressure) -> None:
    backpressure.done(A)
    backpressure.done(A)
    backpressure.full(A, "still full", now=10.0)
    with pytest.raises(ServingError, match="still full"):
        backpressure.check(A, now=10.0)


@given(st.lists(st.booleans(), max_size=50))
def test_as_many_are_let_through_as_were_done(steps: list[bool]) -> None:
    backpressure = Backpressure()
    backpressure.full(A, "a is full", now=0.0)
    places = 0
    for done in steps:
        if done:
            backpressure.done(A)
            places += 1
        elif places:
            backpressure.check(A, now=0.0)
            places -= 1
        else:
            with pytest.raises(ServingError):
                backpressure.check(A, now=0.0)


def test_refusals_of_one_moment_are_sent_together() -> None:
    async def story() -> None:
        refusals = DelayedRefusals()
        first, left, last = (refusals.refusal("full").due for _ in range(3))
        left.cancel()  # Its client has gone, which is nothing to the others.
        await first
        assert last.done()
        later = refusals.refusal("full").due
        assert not later.done()
        await later

    asyncio.run(story())
