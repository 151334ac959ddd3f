"""A body that comes in chunks, put together. Pure: bytes in, bytes out, no clock."""

import re
import zlib

from sublet.serving.frontend.limits import Limits
from sublet.serving.frontend.rest.messages import Body, Refused

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n\x00]*)?\r\n")
_LONGEST_LINE = 256  # Of a size with its extensions, which nobody uses.
_LONGEST_TRAILER = 8192


class Chunks:
    """Takes the bytes after a head until the last chunk. The cost is linear in bytes and chunks."""

    def __init__(self, limits: Limits) -> None:
        self.body = bytearray()
        self.done = False
        self._limits = limits
        self._rest = b""
        """The beginning of a line that has not come whole."""
        self._missing = 0  # Bytes of the present chunk, its line end included.
        self._chunks = 0
        self._trailer = 0
        """Bytes of the lines after the last chunk; they are read and dropped."""

    def feed(self, data: bytes) -> bytes:
        """Take what is ours; returns what comes after the body."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        at, end = 0, len(data)
        while at < end and not self.done:
            if self._missing:
                at = self._content(data, at, end)
            elif self._trailer:
                at = self._end(data, at)
            else:
                at = self._size(data, at)
        return data[at:]

    def _content(self, data: bytes, at: int, end: int) -> int:
        if self._missing > 2:
            stop = min(at + self._missing - 2, end)
            self.body += memoryview(data)[at:stop]
            self._missing -= stop - at
            at = stop
        if self._missing <= 2 and at < end:
            line_end = data[at : at + self._missing]
            if line_end != b"\r\n"[-self._missing :][: len(line_end)]:
                raise Refused(400, "A chunk is not as long as it says.")
            self._missing -= len(line_end)
            at += len(line_end)
        return at

    def _size(self, data: bytes, at: int) -> int:
        line = _SIZE_LINE.match(data, at, at + _LONGEST_LINE)
        if line is None:
            return self._wait(data, at)
        size = int(line[1], 16)
        if size == 0:
            self._trailer = 1
            return line.end()
        self._chunks += 1
        if self._chunks > self._limits.chunks:
            raise Refused(413, f"The body has more than {self._limits.chunks} chunks.")
        if len(self.body) + size > self._limits.body:
            raise Refused(413, f"The body is larger than {self._limits.body} bytes.")
        self._missing = size + 2
        return line.end()

    def _end(self, data: bytes, at: int) -> int:
        stop = data.find(b"\n", at) + 1
        if stop == 0:
            return self._wait(data, at)
        if data[stop - 2 : stop - 1] != b"\r":
            raise Refused(400, "A line of the trailer does not end in CR LF.")
        self._trailer += stop - at
        if self._trailer > _LONGEST_TRAILER:
            raise Refused(431, "The trailer is too long.")
        self.done = stop - at == 2
        return stop

    def _wait(self, data: bytes, at: int) -> int:
        """Keep a line of which the end has not come, if it can still become one."""
        rest = data[at:]
        if len(rest) > (_LONGEST_TRAILER if self._trailer else _LONGEST_LINE) or (
            not self._trailer and (b"\n" in rest or rest[:1] not in _HEX)
        ):
            raise Refused(400, "A chunk does not begin with its size.")
        self._rest = rest
        return len(data)


_HEX = frozenset(bytes([c]) for c in b"0123456789abcdefABCDEF")


_FREE = 16 * 2**20  # A body may always become as large as this.
_RATIO = 32
"""Numbers written as text shrink to a third; more than this is a bomb."""


_MAGIC = b"\x1f\x8b"
_STEP = 64 * 1024
"""Packed bytes that are unpacked at a time, so that a bomb is known long before its end."""


_MEMBERS = 16_384
"""Of one body. A member costs the same whether it holds a byte or a page."""


def unpack(packed: Body, most: int) -> Body:
    """The body itself, of `most` bytes at most. Raises Refused."""
    pieces: list[bytes] = []
    size = end = 0
    for _ in range(_MEMBERS):
        stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        while end < len(packed) and not stream.eof:
            begin, end = end, end + _STEP
            allowed = min(most, max(_FREE, _RATIO * end))
            try:
                pieces.append(stream.decompress(packed[begin:end], allowed - size + 1))
            except zlib.error:
                text = "The body is not packed with gzip, as its headers say."
                raise Refused(400, text) from None
            size += len(pieces[-1])
            if size > allowed:
                raise Refused(413, f"The unpacked body is larger than {allowed} bytes.")
        if not stream.eof:
            raise Refused(400, "The gzip body ends too soon.")
        end = min(end, len(packed)) - len(stream.unused_data)
        if end == len(packed):
            return b"".join(pieces)
        if packed[end : end + 2] != _MAGIC:
            raise Refused(400, "Something follows the gzip body.")
    raise Refused(413, f"The gzip body has more than {_MEMBERS} members.")
