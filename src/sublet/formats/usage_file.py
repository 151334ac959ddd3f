"""The usage file: a record of what one process of a leased program uses, which outlives it.

`inside-<pid>` and `status-<pid>` in the attempt's directory. Each process writes its own
(`inside/measure.py`); files that are not complete are ignored.
"""

from __future__ import annotations

import dataclasses
import os
import struct

VERSION = 1
PREFIX = "inside-"
STATUS = "status-"
_EXIT = struct.Struct("<i")

_LAYOUT = struct.Struct("<12q")
_EARLIER = struct.Struct("<10q")
"""As processes write it that an earlier Sublet has started."""
_CARD = struct.Struct("<2q")
_MOST_CARDS = 64


@dataclasses.dataclass(frozen=True)
class Reading:
    """The contents of a usage file. Times are CLOCK_MONOTONIC in ns, sizes bytes; 0 is unknown."""

    pid: int
    main_started_ns: int
    runtime_started_ns: int
    current: int
    peak: int
    limit: int
    updated_ns: int
    failures: int
    asked: int
    exit_code: int | None
    outside: int = 0
    """What the process held of a GPU beside the memory pool, at most."""
    tree: int = 0
    """The most that the processes of the program which lived at one time had used until then, as
    far as this one has seen: their peaks together. TensorFlow gives nothing back while a process
    lives, so that is what a lease must have."""
    cards: tuple[tuple[int, int], ...] = ()
    """Bytes in use and the peak on each of several cards, of which `current` and `peak` are the
    most; empty for a lease on one."""


def tree_peak(readings: list[Reading]) -> int:
    """The most that the processes of a program have held at one time."""
    return max((max(reading.peak, reading.tree) for reading in readings), default=0)


def pack(reading: Reading) -> bytes:
    _, *fields, code, outside, tree, cards = dataclasses.astuple(reading)
    record = _LAYOUT.pack(VERSION, *fields, 0 if code is None else code + 1, outside, tree)
    return record + b"".join(_CARD.pack(*card) for card in cards)


def card_sums(readings: list[Reading], cards: int) -> list[tuple[int, int]] | None:
    """What processes use together, now and at most, of each of so many cards; None if that is not
    known."""
    known = [one.cards or ((one.current, one.peak),) for one in readings]
    if not known or any(len(one) != cards for one in known):
        return None
    return [
        (sum(one[at][0] for one in known), sum(one[at][1] for one in known)) for at in range(cards)
    ]


def read_usage(directory: str) -> list[Reading]:
    """All usage files of an attempt, in the order of their pids."""
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    numbers = (name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX))
    pids = sorted(int(digits) for digits in numbers if digits.isascii() and digits.isdigit())
    readings = (read_process(directory, pid) for pid in pids)
    return [reading for reading in readings if reading is not None]


def read_process(directory: str, pid: int) -> Reading | None:
    """The usage file of one process; None if it has none, or one that is not complete."""
    try:
        with open(os.path.join(directory, f"{PREFIX}{pid}"), "rb") as file:
            return _unpack(pid, file.read(_LAYOUT.size + _MOST_CARDS * _CARD.size + 1))
    except OSError:
        return None


def outside(readings: list[Reading]) -> int | None:
    """What the processes held of a GPU beside their pools, at most at a time; None if unknown. One
    counts from its start until it was last measured."""
    known = [one for one in readings if one.outside]
    return max(
        (
            sum(
                one.outside
                for one in known
                if one.runtime_started_ns <= moment.runtime_started_ns <= one.updated_ns
            )
            for moment in known
        ),
        default=None,
    )


def read_exit_code(directory: str, pid: int) -> int | None:
    """The exit code that a process has left itself; None if it left none."""
    try:
        with open(os.path.join(directory, f"{STATUS}{pid}"), "rb") as file:
            (code,) = _EXIT.unpack(file.read(_EXIT.size + 1))
        return int(code) & 0xFF
    except (OSError, struct.error):
        codes = [reading.exit_code for reading in read_usage(directory) if reading.pid == pid]
        return codes[-1] if codes else None


def _unpack(pid: int, data: bytes) -> Reading | None:
    if len(data) == _EARLIER.size:
        data += bytes(_LAYOUT.size - len(data))
    cards = data[_LAYOUT.size :]
    if len(data) < _LAYOUT.size or len(cards) % _CARD.size or len(cards) > _MOST_CARDS * _CARD.size:
        return None
    version, *fields, exit_plus_one, outside, tree = _LAYOUT.unpack_from(data)
    more = tuple((now, peak) for now, peak in _CARD.iter_unpack(cards))
    if version != VERSION or min(*fields, outside, tree) < 0 or any(min(card) < 0 for card in more):
        return None
    fields += [exit_plus_one - 1 if exit_plus_one else None, outside, tree, more]
    return Reading(pid, *fields)
