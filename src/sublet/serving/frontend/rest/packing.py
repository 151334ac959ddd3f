"""Bodies that were packed with gzip. Never makes more than it may, whatever the bytes say."""

import zlib

from sublet.serving.frontend.rest.messages import Body, Refused

_FREE = 16 * 2**20
"""A body may always become as large as this."""
_RATIO = 32
"""Numbers written as text shrink to a third; more than this is a bomb."""


_STEP = 64 * 1024
"""Packed bytes that are unpacked at a time, so that a bomb is known long before its end."""


def unpack(packed: Body, most: int) -> Body:
    """The body itself, of `most` bytes at most. Raises Refused."""
    stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    pieces: list[bytes] = []
    size = end = 0
    while end < len(packed) and not stream.eof:
        begin, end = end, end + _STEP
        allowed = min(most, max(_FREE, _RATIO * end))
        try:
            pieces.append(stream.decompress(packed[begin:end], allowed - size + 1))
        except zlib.error:
            raise Refused(400, "The body is not packed with gzip, as its headers say.") from None
        size += len(pieces[-1])
        if size > allowed:
            raise Refused(413, f"The unpacked body is larger than {allowed} bytes.")
    if not stream.eof:
        raise Refused(400, "The gzip body ends too soon.")
    if stream.unused_data or end < len(packed):
        raise Refused(400, "Something follows the gzip body.")
    return b"".join(pieces)
