"""Front ends refuse what would find its queue full, and let in what has a place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.errors import ServingError
from sublet.serving.frontend.backpressure import Backpressure

A, B = ("a", 1), ("b", 1)


@pytest.fixture
def bars() -> Backpressure:
    bars = Backpressure()
    bars.full(A, "a is full", now=10.0)
    return bars


def test_a_full_queue_is_believed_to_be_full_for_a_moment(bars: Backpressure) -> None:
    with pytest.raises(ServingError, match="a is full"):
        bars.check(A, now=10.0)
    bars.check(A, now=11.0)
    bars.check(A, now=10.0)  # Nothing is believed of it any more.


def test_other_models_are_let_through(bars: Backpressure) -> None:
    bars.done(B)
    bars.check(B, now=10.0)
    bars.check(("a", 2), now=10.0)


def test_who_is_refused_again_has_used_up_all_places(bars: Backpressure) -> None:
    bars.done(A)
    bars.done(A)
    bars.full(A, "still full", now=10.0)
    with pytest.raises(ServingError, match="still full"):
        bars.check(A, now=10.0)


@given(st.lists(st.booleans(), max_size=50))
def test_as_many_are_let_through_as_were_done(steps: list[bool]) -> None:
    bars = Backpressure()
    bars.full(A, "a is full", now=0.0)
    places = 0
    for done in steps:
        if done:
            bars.done(A)
            places += 1
        elif places:
            bars.check(A, now=0.0)
            places -= 1
        else:
            with pytest.raises(ServingError):
                bars.check(A, now=0.0)
