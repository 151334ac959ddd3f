"""Plain values as msgpack, without a library.

A client that only has to ask loads msgspec afterwards, while the broker is already at work.
"""

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Tree = dict[str, Any]
    """The fields of a record, by name."""


def pack(value: object) -> bytes:
    """The msgpack of this value; raises TypeError for what msgpack does not know."""
    out = bytearray()
    _put(value, out)
    return bytes(out)


def _put(value: object, out: bytearray) -> None:
    if value is None:
        out.append(0xC0)
    elif value is True or value is False:
        out.append(0xC3 if value else 0xC2)
    elif isinstance(value, int):
        _put_int(value, out)
    elif isinstance(value, float):
        out += struct.pack(">Bd", 0xCB, value)
    elif isinstance(value, str):
        data = value.encode()
        _put_head(len(data), out, (0xA0, 31), (0xD9, 0xDA, 0xDB))
        out += data
    elif isinstance(value, bytes):
        _put_head(len(value), out, None, (0xC4, 0xC5, 0xC6))
        out += value
    elif isinstance(value, list | tuple):
        _put_head(len(value), out, (0x90, 15), (None, 0xDC, 0xDD))
        for item in value:
            _put(item, out)
    elif isinstance(value, dict):
        _put_head(len(value), out, (0x80, 15), (None, 0xDE, 0xDF))
        for key, item in value.items():
            _put(key, out)
            _put(item, out)
    else:
        raise TypeError(f"{type(value).__name__} has no place in a message")


def _put_int(value: int, out: bytearray) -> None:
    if 0 <= value < 0x80:
        out.append(value)
    elif -0x20 <= value < 0:
        out.append(value + 0x100)
    elif value >= 0:
        out += struct.pack(">BQ", 0xCF, value)
    else:
        out += struct.pack(">Bq", 0xD3, value)


def _put_head(
    length: int,
    out: bytearray,
    short: tuple[int, int] | None,
    codes: tuple[int | None, int, int],
) -> None:
    """The kind and length of what follows, in as few bytes as it takes."""
    if short is not None and length <= short[1]:
        out.append(short[0] | length)
        return
    for code, form, most in zip(
        codes, (">BB", ">BH", ">BI"), (0xFF, 0xFFFF, 0xFFFFFFFF), strict=True
    ):
        if code is not None and length <= most:
            out += struct.pack(form, code, length)
            return
    raise TypeError("too long for a message")
