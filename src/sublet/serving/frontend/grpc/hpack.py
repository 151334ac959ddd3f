"""The headers of HTTP/2 (HPACK, RFC 7541): reads all of it, writes without a table.

A client's repeated calls have the same header blocks, byte for byte. A block that leaves the table
alone says the same until the table changes, so what it said is kept until then.
"""

from collections import deque
from functools import cache

# The code is canonical: it follows from the length of each symbol's code. The last one is the end.
_LENGTHS = (
    "13,23,28,28,28,28,28,28,28,24,30,28,28,30,28,28,28,28,28,28,28,28,30,28,28,28,28,28,28,28,28,28,"
    "6,10,10,12,13,6,8,11,10,10,8,11,8,6,6,6,5,5,5,6,6,6,6,6,6,6,7,8,15,6,12,10,"
    "13,6,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,8,7,8,13,19,13,14,6,"
    "15,5,6,5,6,5,6,6,6,5,7,7,6,6,6,5,6,7,6,5,5,6,7,7,7,7,7,15,11,14,13,28,"
    "20,22,20,20,22,22,22,23,22,23,23,23,23,23,24,23,24,24,22,23,24,23,23,23,23,21,22,23,22,23,23,24,"
    "22,21,20,22,22,23,23,21,23,22,22,24,21,22,23,23,21,21,22,21,23,22,23,23,20,22,22,22,23,22,22,23,"
    "26,26,20,19,22,23,22,25,26,26,26,27,27,26,24,25,19,21,26,27,27,26,27,24,21,21,26,26,28,27,27,27,"
    "20,24,20,21,22,21,21,23,22,22,25,25,24,24,26,23,26,27,26,26,27,27,27,27,27,28,27,27,27,27,27,26,"
    "30"
)
_HUFFMAN_END = 256

_Prefix = tuple[int, int]
"""A prefix of the code: its length and its bits."""


def _codes() -> dict[_Prefix, int]:
    lengths = [int(length) for length in _LENGTHS.split(",")]
    codes: dict[_Prefix, int] = {}
    code = last = 0
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(lengths)):
        code <<= length - last
        codes[length, code] = symbol
        code += 1
        last = length
    return codes


_SYMBOLS = _codes()


def huffman_decode(data: bytes) -> bytes:
    """The text of a Huffman code; raises ValueError for what is none."""
    out = []
    prefix: _Prefix = (0, 0)
    for byte in data:
        prefix, text = _step(prefix, byte)
        out.append(text)
    length, bits = prefix
    # What is left over is padding: the begin of the end's code, which is all ones.
    if length > 7 or bits != (1 << length) - 1:
        raise ValueError("wrong padding")
    return b"".join(out)


@cache
def _step(prefix: _Prefix, byte: int) -> tuple[_Prefix, bytes]:
    """What a byte adds after a prefix. There are few prefixes, so each step is learned once."""
    length, bits = prefix
    out = bytearray()
    for shift in range(7, -1, -1):
        length, bits = length + 1, bits << 1 | byte >> shift & 1
        symbol = _SYMBOLS.get((length, bits))
        if symbol == _HUFFMAN_END:
            raise ValueError("the end within a text")
        if symbol is not None:
            out.append(symbol)
            length = bits = 0
    return (length, bits), bytes(out)


Header = tuple[bytes, bytes]
Headers = tuple[Header, ...]

TABLE_SIZE = 4096
LARGEST_LIST = 16 * 1024  # Bytes of a request's headers, as HTTP/2 counts them.
_OVERHEAD = 32
_REMEMBERED = 64

_STATIC_TEXT = (
    ":authority|:method=GET|:method=POST|:path=/|:path=/index.html|:scheme=http|"
    ":scheme=https|:status=200|:status=204|:status=206|:status=304|:status=400|:status=404|"
    ":status=500|accept-charset|accept-encoding=gzip, deflate|accept-language|"
    "accept-ranges|accept|access-control-allow-origin|age|allow|authorization|"
    "cache-control|content-disposition|content-encoding|content-language|content-length|"
    "content-location|content-range|content-type|cookie|date|etag|expect|expires|from|"
    "host|if-match|if-modified-since|if-none-match|if-range|if-unmodified-since|"
    "last-modified|link|location|max-forwards|proxy-authenticate|proxy-authorization|range|"
    "referer|refresh|retry-after|server|set-cookie|strict-transport-security|"
    "transfer-encoding|user-agent|vary|via|www-authenticate"
)
_STATIC: tuple[Header, ...] = tuple(
    (name.encode(), value.encode())
    for name, _, value in (line.partition("=") for line in _STATIC_TEXT.split("|"))
)


class Damaged(ValueError):
    """A header block that cannot be read; the table is lost with it."""


class TooLong(ValueError):
    """More headers than are allowed; the table is still right."""


class Decoder:
    """Reads the header blocks of one connection, each exactly once and in order."""

    def __init__(self) -> None:
        self._table: deque[Header] = deque()
        self._size = 0
        self._limit = TABLE_SIZE
        self._known: dict[bytes, Headers] = {}

    def decode(self, block: bytes) -> Headers:
        known = self._known.get(block)
        if known is not None:
            return known
        try:
            headers, pure = self._decode(block)
        except (IndexError, ValueError) as wrong:
            raise Damaged(str(wrong)) from None
        if headers is None:
            raise TooLong
        if pure:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[block] = headers
        return headers

    def _decode(self, block: bytes) -> tuple[Headers | None, bool]:
        """The headers, None if they are too many; and whether the table was left alone."""
        headers: list[Header] = []
        pure = True
        total = 0
        at, end = 0, len(block)
        while at < end:
            byte = block[at]
            if byte & 0x80:
                index, at = _integer(block, at, 7)
                header = self._find(index)
            elif byte & 0xE0 == 0x20:
                if headers:
                    raise ValueError("a table size after a header")
                size, at = _integer(block, at, 5)
                if size > TABLE_SIZE:
                    raise ValueError("a table larger than allowed")
                pure = False
                self._limit = size
                self._shrink(0)
                continue
            else:
                kept = bool(byte & 0x40)
                index, at = _integer(block, at, 6 if kept else 4)
                if index:
                    name = self._find(index)[0]
                else:
                    name, at = _string(block, at)
                value, at = _string(block, at)
                header = (name, value)
                if kept:
                    pure = False
                    self._keep(header)
            total += len(header[0]) + len(header[1]) + _OVERHEAD
            if total <= LARGEST_LIST:  # beyond that the block is read for the table's sake only
                headers.append(header)
        return tuple(headers) if total <= LARGEST_LIST else None, pure

    def _find(self, index: int) -> Header:
        if not index:
            raise ValueError("index zero")
        if index <= len(_STATIC):
            return _STATIC[index - 1]
        return self._table[index - len(_STATIC) - 1]

    def _keep(self, header: Header) -> None:
        size = len(header[0]) + len(header[1]) + _OVERHEAD
        self._shrink(size)
        if size <= self._limit:
            self._table.appendleft(header)
            self._size += size

    def _shrink(self, extra: int) -> None:
        """Make room; whatever a block said before may be wrong from here on."""
        self._known.clear()
        while self._table and self._size + extra > self._limit:
            name, value = self._table.pop()
            self._size -= len(name) + len(value) + _OVERHEAD


def encode(headers: Headers) -> bytes:
    """A header block that needs no table and changes none."""
    return b"".join(b"\0" + _plain(name) + _plain(value) for name, value in headers)


def _plain(text: bytes) -> bytes:
    size = len(text)
    if size < 0x7F:
        return bytes((size,)) + text
    out = bytearray((0x7F,))
    size -= 0x7F
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out) + text


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    mask = (1 << bits) - 1
    number = block[at] & mask
    at += 1
    if number < mask:
        return number, at
    for shift in range(0, 28, 7):
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("a number without end")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    packed = block[at] & 0x80
    size, at = _integer(block, at, 7)
    text = block[at : at + size]
    if len(text) != size:
        raise ValueError("a text that is cut off")
    return (huffman_decode(text) if packed else text), at + size
