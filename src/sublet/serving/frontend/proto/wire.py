"""The few forms of protobuf's wire format that answers are written in by hand."""

from functools import cache


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
