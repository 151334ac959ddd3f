"""What the two ends of a channel say to each other, byte for byte.

A packet of the SOCK_SEQPACKET socket holds one or more records, in the order they were made. A
record begins with HEAD and is a multiple of 8 bytes long:

    OPEN      client   route; JSON: model, version, signature, inputs, outputs. Once for each route.
    SEGMENT   client   number in `call`, SIZE; takes one descriptor of the packet, its memfd.
    DROP      client   number in `call`: that segment is not used any more.
    CALL      client   route, call, DEADLINE; tensors, as in `tensors.py`.
    CANCEL    client   call.
    ASK       client   call; one tensor of bytes, that is JSON.
    TAKEN     client   call: the memory of its answer has arrived.
    RECORDER  owner    takes one descriptor of the packet: the memfd of the flight recorder.
    ROUTE     engine   route; JSON: the names of the outputs, before the first answer on it.
    ANSWER    engine   route, call, TIMES; tensors. If any is large, takes one descriptor: a memfd.
    REPLY     engine   call; one tensor of bytes, that is JSON, as in an answer.
    FAILED    engine   call, the code in `more`, the index in `codes.REASONS` in `route`; text.
    EVENT     engine   JSON.

Descriptors of a packet are taken by its records in their order. Every CALL and ASK is answered
exactly once, by ANSWER, REPLY or FAILED, also after a CANCEL: until then the client leaves the
memory alone that the call lives in.
"""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

OPEN, SEGMENT, DROP, CALL, CANCEL, ASK, TAKEN, RECORDER = range(1, 9)
ROUTE, ANSWER, REPLY, FAILED, EVENT = range(65, 70)

HEAD = struct.Struct("<IBbHII")
"""Length of the record, kind, priority, route, call, and one more number: for tensors, the
length of their heads."""
DEADLINE = struct.Struct("<Q")  # Nanoseconds of the monotonic clock; 0 for none.
TIMES = struct.Struct("<III4x")
"""Microseconds until the batch began, microseconds that it took, its rows."""
SIZE = struct.Struct("<Q")

CALL_HEAD = struct.Struct("<IBbHIIQ")
ANSWER_HEAD = struct.Struct("<IBbHIIIII4x")
"""HEAD and what follows it, in one piece: these two are made and read for every call."""

MOST_ROUTES = 1 << 16
MOST_CALLS = 1 << 32
LARGEST_PACKET = 160 << 10
"""Bytes. What the kernel takes by default is a little more."""
FULL = 96 << 10
"""Bytes from which on no record is put into a packet that has one."""
INLINE = 64 << 10
"""Bytes of a record's tensors up to which they travel in it."""
MOST_DESCRIPTORS = 64  # In one packet.


class Malformed(Exception):
    """The other end does not speak as agreed; there is no use in listening on."""


class Record(NamedTuple):
    """One record of a packet: its head, and where the rest of it is."""

    kind: int
    priority: int
    route: int
    call: int
    more: int
    at: int
    end: int


def read(packet: bytes | bytearray) -> Iterator[Record]:
    """The records of a packet. Raises Malformed."""
    at, size, head = 0, len(packet), HEAD.size
    while at < size:
        if size - at < head:
            raise Malformed("a packet ends within a record")
        length, kind, priority, route, call, more = HEAD.unpack_from(packet, at)
        if length < head or length % 8 or at + length > size:
            raise Malformed("a record has a wrong length")
        yield Record(kind, priority, route, call, more, at + head, at + length)
        at += length


def plain(kind: int, route: int = 0, call: int = 0, more: int = 0, body: bytes = b"") -> bytes:
    length = HEAD.size + len(body)
    return HEAD.pack(-(-length // 8) * 8, kind, 0, route, call, more) + body + bytes(-length % 8)


def body(packet: bytes | bytearray, record: Record) -> Any:
    """What follows the head; may end in zeros that fill it up."""
    return memoryview(packet)[record.at : record.end]
