"""Reads the scalars of TensorBoard's event files, without TensorFlow, and while they are written.

A file is a row of records: the length of the data (8 bytes), a checksum of that, the data, and a
checksum of those. The data are an Event:

    Event 1: wall_time, 2: step, 5: summary ─ 1: value ─ 1: tag, 2: simple_value, 8: tensor,
                                                         9: metadata ─ 1: plugin_data ─ 1: its name

Records without scalars (graphs, images) are stepped over. A record that is not complete is one that
is being written. What is damaged ends the reading of its file: nothing behind it can be found.
"""

import math
import os
import stat
import struct
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from sublet.protobuf_fields import Malformed, fields, messages, signed, text

_HEAD = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")
_LARGEST = 1 << 14
"""Bytes of an event that is looked at; one with scalars has a hundred."""
_PIECE = 1 << 20
_LONGEST_TAG = 200
_SCALARS = "scalars"
_NUMBERS = {1: "<f", 2: "<d", 3: "<i", 9: "<q", 19: "<e"}
"""TensorFlow's types, and how one such number lies in memory."""
_BFLOAT16 = 14


class Scalar(NamedTuple):
    """One value of a curve."""

    tag: str
    step: int
    value: float
    at: float
    """Wall seconds."""


class EventFile:
    """One file, read from where it was left the time before."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.damaged = False
        """Whether something makes no sense; nothing more comes of it then."""
        self._position = 0

    def read(self, until: float) -> Iterator[Scalar]:
        """What is new, up to this moment of the monotonic clock; then the rest comes the next time.
        Raises OSError."""
        # A pipe must not be waited for.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb", buffering=_PIECE) as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_size < self._position:
                self.damaged = True
            while not self.damaged and time.monotonic() < until:
                file.seek(self._position)
                head = file.read(_HEAD.size)
                if len(head) < _HEAD.size:
                    return
                if (length := _length(head)) is None:
                    self.damaged = True
                    return
                if self._position + _HEAD.size + length + _CHECKSUM.size > found.st_size:
                    return
                if length <= _LARGEST:
                    yield from self._scalars(file.read(length), file.read(_CHECKSUM.size))
                self._position += _HEAD.size + length + _CHECKSUM.size

    def _scalars(self, data: bytes, checksum: bytes) -> list[Scalar]:
        try:
            if _CHECKSUM.pack(_masked(data)) == checksum:
                return list(_event(memoryview(data)))
        except (Malformed, struct.error):
            pass
        self.damaged = True
        return []


@lru_cache(4096)
def _length(head: bytes) -> int | None:
    """The length that a record's head names; None if the head is damaged."""
    length, checksum = _HEAD.unpack(head)
    return length if _masked(head[:8]) == checksum else None


def _event(data: memoryview) -> Iterator[Scalar]:
    at, step = 0.0, 0
    values: list[memoryview] = []
    for number, field in fields(data):
        if number == 1 and isinstance(field, memoryview):
            (at,) = _DOUBLE.unpack(field)
        elif number == 2 and isinstance(field, int):
            step = signed(field)
        elif number == 5 and isinstance(field, memoryview):
            values += messages(field, 1)
    if not math.isfinite(at):
        raise Malformed("an event has no time")
    for one in values:
        tag, value = _value(one)
        if value is not None:
            yield Scalar(tag, step, value, at)


def _value(data: memoryview) -> tuple[str, float | None]:
    tag, value, plugin = "", None, _SCALARS
    for number, field in fields(data):
        if not isinstance(field, memoryview):
            continue
        if number == 1:
            tag = text(field[:_LONGEST_TAG]) if len(field) <= _LONGEST_TAG else ""
        elif number == 2:
            (value,) = _FLOAT.unpack(field)
        elif number == 8:
            value = _tensor(field)
        elif number == 9:
            names = [name for one in messages(field, 1) for name in messages(one, 1)]
            plugin = text(names[-1]) if names and len(names[-1]) <= _LONGEST_TAG else _SCALARS
    return tag, value if tag and plugin == _SCALARS else None


def _tensor(data: memoryview) -> float | None:
    """The number in a tensor that holds one; None for any other."""
    dtype, packed = 0, b""
    for number, field in fields(data):
        if number == 1 and isinstance(field, int):
            dtype = field
        elif number == 2 and isinstance(field, memoryview):
            if any(True for _ in fields(field)):  # It has dimensions, or an unknown rank.
                return None
        elif number in (4, 5, 6) and isinstance(field, memoryview):
            packed = bytes(field)
        elif number in (7, 10, 13):
            packed = _packed_integer(field, dtype)
    if dtype == _BFLOAT16 and len(packed) == 2:
        dtype, packed = 1, bytes(2) + packed
    form = _NUMBERS.get(dtype)
    if form is None or len(packed) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, packed)[0])


def _packed_integer(field: int | memoryview, dtype: int) -> bytes:
    """The bytes of a number that is in a list of integers: one, or the packed list with one."""
    if isinstance(field, memoryview):
        value = shift = 0
        for byte in field[:10]:
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        field = value & ((1 << 64) - 1)
    size = {3: 4, 9: 8, 19: 2, _BFLOAT16: 2}.get(dtype, 0)
    return (field & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return table


_CRC32C = _table()


def _masked(data: bytes) -> int:
    """CRC-32C, turned round as these files have it."""
    crc = 0xFFFFFFFF
    table = _CRC32C
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
