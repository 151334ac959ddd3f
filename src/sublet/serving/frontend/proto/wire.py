"""The few forms of protobuf's wire format that answers are written in by hand."""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from sublet.protobuf_fields import field


def varint(number: int) -> bytes:
    """A number that is not negative, seven bits a byte."""
    if number < 0x80:
        return _SHORT[number]
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_SHORT = [bytes((number,)) for number in range(0x80)]


@cache
def tag(number: int, kind: int = 2) -> bytes:
    """The key of a field; kind 2 is for bytes, text, messages and packed lists, 0 for a varint."""
    return varint(number << 3 | kind)


def head(number: int, size: int) -> bytes:
    """What precedes a field of bytes, text, a message or a packed list."""
    return tag(number) + varint(size)


def piece(number: int, data: bytes) -> bytes:
    """A field of bytes, text, a message or a packed list."""
    return b"".join((tag(number), varint(len(data)), data))


LARGE = 1 << 16  # Bytes from which on a tensor is worth it.
MOST = 64
"""Fields of a message that are looked at here; protobuf reads many small ones faster."""

_INPUTS = 2 << 3 | 2
_KEY = 1 << 3 | 2
_VALUE = 2 << 3 | 2
_CONTENT = 4 << 3 | 2
_RAW = 7 << 3 | 2
PREDICT = (_INPUTS, _VALUE, _CONTENT)
"""The way to the content of a tensor in a PredictRequest."""
INFER = (_RAW,)  # In a ModelInferRequest.

Data = bytes | bytearray | memoryview


class Unusual(ValueError):
    """Not what clients send; it may still be right."""


class Lifted(NamedTuple):
    """A request without the contents of its large tensors."""

    request: bytes | memoryview
    contents: dict[str, memoryview]  # By input.
    inputs: int
    """How often an input is given; one that is given twice is unusual, too."""


def lift(data: memoryview) -> Lifted:
    """Take the large contents out. They are views of the request, and keep it in memory."""
    kept: list[bytes | memoryview] = []
    contents: dict[str, memoryview] = {}
    inputs = 0
    try:
        for tag, begin, at, end in _fields(data):
            inputs += tag == _INPUTS
            if tag == _INPUTS and end - at > LARGE:
                kept.append(_entry(data[at:end], contents))
            else:
                kept.append(data[begin:end])
    except ValueError:
        return Lifted(data, {}, inputs)
    return Lifted(b"".join(kept), contents, inputs)


def lift_raw(data: memoryview) -> tuple[bytes | memoryview, list[memoryview]]:
    """The same for a ModelInferRequest, whose raw contents are fields of it."""
    kept: list[bytes | memoryview] = []
    contents: list[memoryview] = []
    try:
        for tag, begin, at, end in _fields(data):
            if tag == _RAW:
                contents.append(data[at:end])
            else:
                kept.append(data[begin:end])
    except ValueError:
        return data, []
    return b"".join(kept), contents


def content_at(beginning: Data, way: tuple[int, ...]) -> int:
    """Where the content of the first large tensor begins in a request that begins with these
    bytes. Large is what reaches beyond them; 0 if there is none, or it is unusual."""
    at = depth = 0
    try:
        for _ in range(MOST):
            tag, at, after = field(beginning, at)
            if after <= len(beginning):
                at = after
            elif tag != way[depth]:
                return 0
            elif depth == len(way) - 1:
                return at
            else:
                depth += 1
    except ValueError:
        pass
    return 0


def _entry(data: memoryview, contents: dict[str, memoryview]) -> bytes:
    """One input: its name and its tensor, without the content."""
    parts = {tag: data[at:end] for tag, _, at, end in _fields(data)}
    if parts.keys() != {_KEY, _VALUE}:
        raise Unusual
    name = str(parts[_KEY], "utf-8")
    tensor = parts[_VALUE]
    fields = list(_fields(tensor))
    content = [tensor[at:end] for tag, _, at, end in fields if tag == _CONTENT]
    if len(content) != 1 or name in contents:
        raise Unusual
    contents[name] = content[0]
    kept = [tensor[begin:end] for tag, begin, _, end in fields if tag != _CONTENT]
    return piece(2, piece(1, bytes(parts[_KEY])) + piece(2, b"".join(kept)))


def _fields(data: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Each field: its tag, and where it, its value, and what follows begin."""
    begin, end = 0, len(data)
    for _ in range(MOST):
        if begin == end:
            return
        tag, at, after = field(data, begin)
        if after > end:
            raise Unusual
        yield tag, begin, at, after
        begin = after
    if begin < end:
        raise Unusual
