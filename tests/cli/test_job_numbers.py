"""Numbers of jobs on a command line."""

import contextlib
from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.cli.job_numbers import read_indexes, read_number, read_numbers
from sublet.client import jobs
from sublet.errors import BadRequest
from sublet.wire.messages import Jobs
from sublet.wire.rows import JobRow


@pytest.fixture(scope="module", autouse=True)
def _no_job_has_a_name() -> Iterator[None]:
    """What is no number may be a name: then all jobs are looked through."""
    with mock.patch.object(jobs, "listing", return_value=Jobs(())):
        yield


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("13",), (13,)),
        (("13", "14"), (13, 14)),
        (("#13",), (13,)),
        (("13,15",), (13, 15)),
        (("13, 15",), (13, 15)),
        (("20-23", "21", "7"), (20, 21, 22, 23, 7)),
        (("5-5",), (5,)),
        ((), ()),
    ],
)
def test_numbers_and_ranges_are_read_each_once(
    words: tuple[str, ...], meant: tuple[int, ...]
) -> None:
    assert read_numbers(words) == meant


@pytest.mark.parametrize(
    "word",
    ["", " ", ",", "train.py", "-3", "3-", "5-4", "1.5", "0x10", "²", "0-999999", "9" * 5000],
)
def test_what_is_no_number_is_refused_with_an_example(word: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        read_numbers((word,), "--after ")
    assert refusal.value.message.startswith("--after ")
    assert "20-25" in refusal.value.hint


@pytest.mark.parametrize(
    ("text", "indexes", "at_once"),
    [
        ("0-3", (0, 1, 2, 3), 0),
        ("0-9:3", (0, 3, 6, 9), 0),
        ("1,5,7", (1, 5, 7), 0),
        ("5,1-2", (5, 1, 2), 0),
        ("0-3%2", (0, 1, 2, 3), 2),
        ("4", (4,), 0),
        ("1,1,1-2", (1, 2), 0),
    ],
)
def test_an_array_is_read(text: str, indexes: tuple[int, ...], at_once: int) -> None:
    assert read_indexes(text) == (indexes, at_once)


@pytest.mark.parametrize(
    "text",
    ["", "a", "3-1", "0-9:0", "0-9:", "0-9%", "0-9%0", "0-9%x", "-1", "1,,2", "1-", "0-100000"],
)
def test_what_is_no_array_is_refused_with_examples(text: str) -> None:
    with pytest.raises(BadRequest, match="--array") as refusal:
        read_indexes(text)
    assert "0-99%4" in refusal.value.hint


@pytest.mark.parametrize("text", ["9" * 5000, "0-1%" + "9" * 30])
def test_numbers_that_are_too_long_are_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="is not a range"):
        read_indexes(text)


@given(st.text(max_size=12) | st.text("0123456789-,:%# ", max_size=8))
def test_any_text_is_read_or_refused(text: str) -> None:
    numbers: tuple[int, ...] = (1,)
    indexes: tuple[int, ...] = (1,)
    with contextlib.suppress(BadRequest):
        numbers = read_numbers((text,))
    with contextlib.suppress(BadRequest):
        indexes, _ = read_indexes(text)
    assert numbers
    assert indexes


@given(st.sets(st.integers(0, 10**6), min_size=1, max_size=20))
def test_numbers_come_back_as_they_were_written(numbers: set[int]) -> None:
    in_order = sorted(numbers)
    text = ",".join(map(str, in_order))
    assert read_numbers((text,)) == tuple(in_order)
    assert read_indexes(text) == (tuple(in_order), 0)


def test_where_one_job_is_meant_several_are_refused() -> None:
    assert read_number("#13") == read_number("13") == 13
    for text in ("13-14", "13,14"):
        with pytest.raises(BadRequest, match="more than one job"):
            read_number(text)


def test_what_is_too_long_is_not_said_to_be_unreadable() -> None:
    with pytest.raises(BadRequest, match="more than 100000 jobs"):
        read_numbers(("1-200000",))
    with pytest.raises(BadRequest, match="more than 100000 jobs"):
        read_indexes("1-200000")


def test_a_name_means_the_newest_job_where_one_is_looked_at_and_is_refused_elsewhere() -> None:
    def row(number: int, state: str, array: int | None = None) -> JobRow:
        return JobRow(number, "cnn", state, "", 0, 1, "", "normal", "guaranteed", "", array=array)

    ended = [row(3, "finished"), row(7, "finished"), row(5, "finished")]
    named = mock.Mock(return_value=Jobs(tuple(ended)))
    with mock.patch.object(jobs, "listing", named):
        assert read_number("cnn") == 7
        with pytest.raises(BadRequest, match="3 jobs are named 'cnn'"):
            read_numbers(("cnn",))
        named.return_value = Jobs((*ended, row(2, "running")))
        assert read_number("cnn") == 2
        named.return_value = Jobs((*ended, row(8, "finished", 8), row(9, "finished", 8)))
        with pytest.raises(BadRequest, match="more than one job"):
            read_number("cnn")
