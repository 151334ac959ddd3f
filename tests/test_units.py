"""Amounts as people write and read them."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.errors import BadRequest
from sublet.units import (
    LARGEST,
    GiB,
    KiB,
    MiB,
    PiB,
    TiB,
    format_bytes,
    format_seconds,
    parse_bytes,
    shorten,
    written_bytes,
)


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("2GiB", 2 * GiB),
        ("512 MiB", 512 * MiB),
        ("1.5g", GiB + GiB // 2),
        ("800M", 800 * MiB),
        ("2GB", 2_000_000_000),
        ("  64kib\n", 64 * KiB),
        ("1Ti", TiB),
        (".5 GiB", GiB // 2),
        ("+1g", GiB),
        ("1024B", 1024),
        ("1024 TiB", LARGEST),
    ],
)
def test_amounts_are_read_as_people_write_them(text: str, bytes_: int) -> None:
    assert parse_bytes(text) == bytes_


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty. Write a number and a unit, such as 2GiB"),
        ("   ", "is empty"),
        ("0", "must be more than 0. Write"),
        ("0GiB", "must be more than 0. Write"),
        ("-2GiB", '"-2GiB" is negative; memory must be more than 0. Leave the sign out.'),
        ("1024", '"1024" has no unit. Say which one: 1024MiB, 1024GiB, or 1024B for bytes.'),
        ("2 bananas", '"2 bananas" has no known unit: "bananas". Use KiB, MiB, GiB or TiB'),
        ("nan", '"nan" is not an amount of memory. Write'),
        ("inf", "is not an amount of memory. Write"),
        ("GiB", "is not an amount of memory. Write"),
        ("40%", "is not an amount of memory. Write"),
        ("1,5GiB", "is not an amount of memory. Write"),
        ("1e3MiB", "is not an amount of memory. Write"),
        ("٢GiB", "is not an amount of memory. Write"),
        ("0.1B", "is less than one byte. Write"),
        ("1025TiB", '"1025TiB" is more than any device has. The most is 1.0 PiB. Write'),
        ("9" * 30 + "g", "is more than any device has"),
        ("9" * 5000 + "g", "is not an amount of memory"),
    ],
)
def test_what_is_no_amount_is_refused_with_what_to_write(text: str, says: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        parse_bytes(text)
    assert says in str(refusal.value)
    assert refusal.value.hint
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize(
    ("bytes_", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (KiB, "1.0 KiB"),
        (213 * MiB, "213 MiB"),
        (1023 * MiB + 700 * KiB, "1.0 GiB"),
        (GiB, "1.0 GiB"),
        (3 * GiB // 2, "1.5 GiB"),
        (2 * GiB, "2.0 GiB"),
        (int(23.65 * GiB), "23.6 GiB"),
        (int(99.97 * GiB), "100 GiB"),
        (1000 * GiB, "1000 GiB"),
        (PiB, "1.0 PiB"),
        (-3 * GiB, "-3.0 GiB"),
    ],
)
def test_bytes_read_well(bytes_: int, text: str) -> None:
    assert format_bytes(bytes_) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (-1, "0 ms"),
        (0.045, "45 ms"),
        (0.9996, "1.0 s"),
        (4.1, "4.1 s"),
        (59.96, "1 min 0 s"),
        (723, "12 min 3 s"),
        (3599.7, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (7199, "2 h 00 min"),
        (360_000, "100 h 00 min"),
    ],
)
def test_seconds_read_well(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@given(st.integers(1, LARGEST))
def test_what_is_shown_is_short_and_near_the_truth_when_read_back(bytes_: int) -> None:
    shown = format_bytes(bytes_)
    assert len(shown) <= 8
    assert abs(parse_bytes(shown) - bytes_) <= bytes_ * 0.05


@given(st.integers(1, LARGEST))
def test_every_number_of_bytes_can_be_written_exactly(bytes_: int) -> None:
    assert parse_bytes(f"{bytes_}B") == bytes_
    assert parse_bytes(f" {bytes_} b ") == bytes_


@given(st.integers(1, LARGEST), st.integers(1, LARGEST))
def test_more_is_never_shown_as_less(one: int, other: int) -> None:
    less, more = sorted((one, other))
    assert parse_bytes(format_bytes(less)) <= parse_bytes(format_bytes(more))


@given(st.text())
def test_any_text_is_an_amount_or_a_bad_request(text: str) -> None:
    with suppress(BadRequest):
        assert 1 <= parse_bytes(text) <= LARGEST


@given(st.floats(0, 10**9))
def test_no_span_of_time_reads_as_sixty_of_anything(seconds: float) -> None:
    assert not {"60", "1000"} & set(format_seconds(seconds).replace("h", "").split()[1:])


@pytest.mark.parametrize(
    ("text", "width", "short"),
    [("model", 5, "model"), ("half_plus_two_cpu", 9, "half…_cpu"), ("abcdef", 4, "ab…f")],
)
def test_a_long_name_keeps_both_ends(text: str, width: int, short: str) -> None:
    assert shorten(text, width) == short
    assert len(shorten(text, width)) <= width


@given(st.integers(MiB, PiB), st.booleans())
def test_a_size_to_try_is_enough_or_there(n: int, up: bool) -> None:
    there = parse_bytes(written_bytes(n, up))
    assert there >= n if up else there <= n
    assert abs(there - n) <= (GiB // 10 + 1 if n >= GiB else MiB)


def test_a_size_to_try_is_short() -> None:
    assert written_bytes(467 * MiB) == "467MiB"
    assert written_bytes(int(5.85 * GiB)) == "5.9GiB"
    assert written_bytes(int(5.85 * GiB), up=False) == "5.8GiB"
    assert written_bytes(2 * GiB) == "2GiB"
