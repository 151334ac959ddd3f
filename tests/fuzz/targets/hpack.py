"""The header blocks of HTTP/2."""

from fuzz.driver import Random, Target
from sublet.serving.frontend.grpc import hpack
from support.h2client import POST

_NAMES = (b":path", b":method", b"te", b"grpc-timeout", b"authorization", b"x" * 40, b"")


def target() -> Target:
    return Target(
        feed, (hpack.encode(POST), b"\x82\x86\x84", b"\x40\x01a\x01b\xbe", b"\x3f\xe1\x1f"), make
    )


def feed(data: bytes) -> None:
    """As one connection sends them: blocks, each of which may change the table."""
    decoder = hpack.Decoder()
    for block in data.split(b"\xff\xff"):
        try:
            headers = decoder.decode(block)
        except hpack.Damaged:
            return
        except hpack.TooLong:
            continue
        size = sum(len(name) + len(value) + 32 for name, value in headers)
        assert size <= hpack.LARGEST_LIST
        assert decoder._size <= decoder._limit <= hpack.TABLE_SIZE
        # What is remembered says the same when it is read again.
        assert decoder.decode(hpack.encode(headers)) == headers


def make(chance: Random) -> bytes:
    """Literal headers, with and without the table, and references to it."""
    parts = []
    for _ in range(chance.randrange(1, 12)):
        match chance.randrange(4):
            case 0:
                parts.append(bytes((0x80 | chance.randrange(128),)))
            case 1:
                pair = (chance.choice(_NAMES), chance.randbytes(chance.randrange(60)))
                parts.append(
                    bytes((chance.choice((0x00, 0x10, 0x40)),)) + hpack.encode((pair,))[1:]
                )
            case 2:
                parts.append(bytes((0x20 | chance.randrange(32),)))
            case _:
                parts.append(
                    b"\x40\x01a" + bytes((0x80 | chance.randrange(20),)) + chance.randbytes(9)
                )
        if chance.random() < 0.1:
            parts.append(b"\xff\xff")
    return b"".join(parts)
