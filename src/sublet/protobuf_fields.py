"""Reads the fields of a protobuf message one by one. Knows no message, and copies nothing."""

from collections.abc import Iterator

_VARINT = 0
_INT64 = 1 << 63


class Malformed(ValueError):
    """The bytes are not such a message, or not all of one."""


def messages(data: memoryview, wanted: int) -> Iterator[memoryview]:
    """All values of one field that holds bytes or messages."""
    for number, value in fields(data):
        if number == wanted and isinstance(value, memoryview):
            yield value


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The fields of a message in their order: numbers, or views of bytes. Nothing is copied."""
    at, end = 0, len(data)
    while at < end:
        tag, begin, at = field(data, at)
        if tag >> 3 == 0:
            raise Malformed("a field has the number 0")
        if at > end:
            raise Malformed(f"it ends {at - end} bytes too early")
        yield tag >> 3, _varint(data, begin)[0] if tag & 7 == _VARINT else data[begin:at]


def field(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int, int]:
    """The tag of the field that begins here, where its value begins, and where that ends: perhaps
    beyond the data. Raises Malformed."""
    tag, at = _varint(data, at)
    match tag & 7:
        case 0:
            return tag, at, _varint(data, at)[1]
        case 1:
            return tag, at, at + 8
        case 2:
            size, at = _varint(data, at)
            return tag, at, at + size
        case 5:
            return tag, at, at + 4
        case kind:
            raise Malformed(f"a field has the unknown wire type {kind}")


def _varint(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if at >= len(data):
            raise Malformed("it ends in the middle of a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2 * _INT64 - 1), at
        shift += 7
    raise Malformed("a number is longer than ten bytes")


def signed(number: int) -> int:
    """A number of a field of type int64, which is read as if it had no sign."""
    return number - 2 * _INT64 if number >= _INT64 else number


def text(data: memoryview) -> str:
    """A field of type string. Raises Malformed."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise Malformed("a name is not UTF-8") from None
