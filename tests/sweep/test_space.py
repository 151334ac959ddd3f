"""What a space allows, and what is refused."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.errors import BadRequest
from sublet.sweeps.space import Space, choice, loguniform, plain_value, randint, uniform


def test_a_grid_has_every_combination_and_the_last_parameter_changes_first() -> None:
    space = Space.read({"rate": [0.1, 0.01], "units": (8,), "seed": range(2)})
    assert space.size == 4
    assert [tuple(one.values()) for one in space.grid()] == [
        (0.1, 8, 0),
        (0.1, 8, 1),
        (0.01, 8, 0),
        (0.01, 8, 1),
    ]


@given(st.integers(0, 2**32), st.floats(1e-6, 1.0), st.floats(1.5, 1e6), st.integers(1, 30))
def test_samples_lie_in_the_space_and_are_the_same_for_a_seed(
    seed: int, low: float, high: float, count: int
) -> None:
    space = Space.read(
        {"a": uniform(low, high), "b": loguniform(low, high), "c": randint(-2, 5), "d": ["x", None]}
    )
    samples = space.samples(count, seed)
    assert samples == space.samples(count, seed)
    assert len(samples) == count
    for one in samples:
        assert low <= one["a"] <= high
        assert low <= one["b"] <= high
        assert one["c"] in range(-2, 6)
        assert one["d"] in ("x", None)


def test_no_combination_is_drawn_twice_and_a_small_space_is_tried_whole() -> None:
    space = Space.read({"a": randint(0, 9), "b": choice("x", "y")})
    assert len({repr(one) for one in space.samples(19, 1)}) == 19
    assert len(space.samples(50, 1)) == 20


def test_a_logarithmic_range_is_drawn_evenly_by_size() -> None:
    domain = loguniform(1e-4, 1.0)
    draw = random.Random(0)
    below = sum(domain.at(draw.random()) < 1e-2 for _ in range(2000))
    assert 900 < below < 1100


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({}, "empty"),
        ([("a", [1])], "not a dict"),
        ({"a": []}, "no values"),
        ({"two words": [1]}, "name of a parameter"),
        ({"a": (n for n in range(3))}, "cannot be tried again"),
    ],
)
def test_a_space_that_makes_no_sense_is_refused(space: Any, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        Space.read(space)


def test_bounds_that_make_no_sense_are_refused() -> None:
    for make in (lambda: uniform(2, 1), lambda: loguniform(0, 1), lambda: randint(1, 0)):
        with pytest.raises(BadRequest):
            make()
    with pytest.raises(BadRequest, match="no end of values"):
        list(Space.read({"a": uniform(0, 1)}).grid())
    with pytest.raises(BadRequest, match="more than 100000"):
        list(Space.read({"a": range(1000), "b": range(1000)}).grid())


def test_values_that_json_does_not_know_are_shown_as_python_does() -> None:
    assert plain_value((1, "a", float("inf"), len)) == [1, "a", "inf", "len"]
