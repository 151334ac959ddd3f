"""What people write after options: sizes, shares, spans of time, numbers of jobs, arrays."""

import math
from collections.abc import Callable
from typing import Any
from unittest import mock

from fuzz.driver import Random, Target
from sublet.cli.job_numbers import read_indexes, read_numbers
from sublet.client import jobs
from sublet.domain.memory import parse_memory
from sublet.domain.memory_option import read_memory
from sublet.errors import BadRequest
from sublet.units import LARGEST, parse_bytes, parse_seconds
from sublet.wire.messages import Jobs
from sublet.wire.pack import pack

_TEXTS = (
    *("2GiB", "512 MiB", "1.5g", "40%", "0.1%", "grow", "auto", "1048576B", "2GiB..6GiB"),
    *(
        "90s",
        "1h30m",
        "1.5d",
        "250ms",
        "13",
        "#13",
        "13,14 20-25",
        "0-9",
        "0-99%4",
        "0-9:3",
        "1,5,7",
    ),
)
_PARTS = (
    *"0123456789.,-+%:#eE_ ",
    "inf",
    "nan",
    "GiB",
    "m",
    "١",
    "９",
    "\u200b",
    "0" * 30,
    "9" * 30,
)


def target() -> Target:
    return Target(feed, [text.encode() for text in _TEXTS], make)


def make(chance: Random) -> bytes:
    return "".join(chance.choices(_PARTS, k=chance.randrange(1, 9))).encode()


def feed(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    if (size := _read(parse_bytes, text)) is not None:
        assert 1 <= size <= LARGEST
    if (span := _read(parse_seconds, text)) is not None:
        assert math.isfinite(span)
        assert span >= 0
    if (asked := _read(read_memory, text)) is not None:
        pack(asked)
        assert asked.get("share", 1.0) <= 1.0
    _read(parse_memory, text)
    with mock.patch.object(jobs, "listing", return_value=Jobs(())):  # What is no number is a name.
        if (numbers := _read(read_numbers, (text,))) is not None:
            pack(numbers)
    if (array := _read(read_indexes, text)) is not None:
        pack(array)
        assert len(array[0]) <= 1_000_000


def _read(read: Callable[[Any], Any], given: object) -> Any:
    try:
        return read(given)
    except BadRequest as wrong:
        if not (wrong.message and wrong.hint):
            raise
        return None
