"""Event files as TensorBoard reads them, written by hand; real writers are tried elsewhere."""

import struct

from sublet.event_file import _masked


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    found = b""
    while number > 0x7F:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def field(number: int, data: bytes) -> bytes:
    """A field of bytes."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def record(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    checks = (struct.pack("<I", _masked(part)) for part in (head, data))
    return head + next(checks) + data + next(checks)


def event(step: int, *values: bytes, at: float = 1000.0) -> bytes:
    summary = b"".join(field(1, value) for value in values)
    return b"\x09" + struct.pack("<d", at) + b"\x10" + varint(step) + field(5, summary)


def simple(tag: str, value: float) -> bytes:
    """As TensorFlow 1 and tensorboardX write it."""
    return field(1, tag.encode()) + b"\x15" + struct.pack("<f", value)


def tensor(tag: str, value: float, plugin: str = "scalars") -> bytes:
    """As TensorFlow 2 writes it."""
    metadata = field(9, field(1, field(1, plugin.encode())))
    held = b"\x08\x01\x12\x00" + field(4, struct.pack("<f", value))
    return field(1, tag.encode()) + field(8, held) + metadata


def file(*events: bytes) -> bytes:
    return record(b"\x09" + bytes(8) + field(3, b"brain.Event:2")) + b"".join(map(record, events))
