"""What the memory that calls took says of larger ones."""

import math

import pytest

from sublet.channel.codes import Code
from sublet.engine.memory import Need
from sublet.units import MiB

ROOM = 512 * MiB


def seen(*calls: tuple[int, int]) -> Need:
    """Calls by the MiB of their inputs and the MiB that they took."""
    need = Need()
    for size, taken in calls:
        assert need.tells(size * MiB)
        need.note(size * MiB, taken * MiB, ROOM)
    return need


def test_nothing_is_too_large_before_anything_is_known() -> None:
    need = Need()
    assert not need.bounded
    assert need.piece(0.0) == math.inf
    assert need.refusal(1 << 50, 0.0) is None


def test_only_calls_that_are_twice_as_large_as_before_say_something_new() -> None:
    need = seen((2, 20))
    assert not need.tells(3 * MiB)
    assert need.tells(4 * MiB)
    assert not Need().tells(0)


def test_a_call_that_took_little_says_nothing_of_large_ones() -> None:
    need = seen((1, 2), (2, 4))
    assert not need.bounded
    assert need.refusal(1 << 40, 0.0) is None


def test_two_calls_say_what_would_take_twice_the_memory_and_that_is_refused() -> None:
    need = seen((1, 16), (4, 64))
    assert need.refusal(63 * MiB, 0.0) is None
    refusal = need.refusal(64 * MiB, 0.0)
    assert refusal is not None
    assert refusal.code == Code.RESOURCE_EXHAUSTED
    assert "64.0 MiB of inputs" in refusal.message
    assert "memory for 32.0 MiB" in refusal.message


def test_what_any_call_takes_is_not_taken_for_what_each_byte_takes() -> None:
    # 200 MiB whatever the inputs are, and ten for each.
    need = seen((1, 210), (4, 240))
    assert need.refusal(82 * MiB, 0.0) is None
    assert need.refusal(83 * MiB, 0.0) is not None


def test_a_single_call_is_enough_to_split_by_but_not_to_refuse_by() -> None:
    need = seen((1, 64))
    assert need.piece(0.0) == 2 * MiB
    assert need.refusal(1 << 40, 0.0) is None


def test_a_larger_call_that_took_no_more_says_that_size_does_not_matter() -> None:
    need = seen((1, 64), (4, 64))
    assert not need.bounded


def test_a_call_that_ran_out_of_memory_speaks_for_larger_ones_for_a_minute() -> None:
    need = Need()
    need.note_short(8 * MiB, 100.0)
    assert need.refusal(8 * MiB - 1, 100.0) is None
    assert need.refusal(8 * MiB, 159.0) is not None
    assert need.piece(159.0) == MiB
    assert need.refusal(8 * MiB, 160.0) is None
    assert need.piece(160.0) == math.inf


def test_what_was_answered_once_is_not_refused_for_what_another_said() -> None:
    need = seen((16, 160))
    need.note_short(8 * MiB, 0.0)
    assert need.refusal(16 * MiB, 0.0) is None
    assert need.refusal(17 * MiB, 0.0) is not None


@pytest.mark.parametrize("size", [1, 1 << 40])
def test_another_model_is_not_judged_by_the_one_before(size: int) -> None:
    need = seen((1, 64), (4, 256))
    need.note_short(8 * MiB, 0.0)
    need.forget()
    assert need.refusal(size, 0.0) is None
    assert need.tells(1)
