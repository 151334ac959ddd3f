"""Blocks of headers: put together from their frames, and read."""

from typing import NamedTuple

from sublet.serving.frontend.grpc import frames, hpack
from sublet.serving.frontend.grpc.frames import ConnectionFault, Fault
from sublet.serving.frontend.grpc.reading import LARGEST_CONTROL

LARGEST_BLOCK = 4 * LARGEST_CONTROL
"""Bytes of headers in all their frames."""


class Block(NamedTuple):
    """Headers that are complete."""

    stream: int
    ended: bool
    """Whether they are the last that the client sends in this stream."""
    headers: hpack.Headers | None
    """None if they are too many."""


class Blocks:
    """Of one connection: each block builds on those before it, so all of them are read here."""

    def __init__(self) -> None:
        self._decoder = hpack.Decoder()
        self.begun: tuple[int, int, bytearray] | None = None
        """Stream, flags and bytes of headers that are not complete: until they are, no other frame
        may come."""

    def begin(self, flags: int, stream: int, payload: bytes) -> Block | None:
        """Take a HEADERS frame; the block, if that is all of it."""
        if flags & (frames.PADDED | frames.PRIORITIZED):
            payload = _bare(flags, payload)
        if flags & frames.END_HEADERS:
            return self._read(flags, stream, payload)
        self.begun = (stream, flags, bytearray(payload))
        return None

    def go_on(self, flags: int, stream: int, payload: bytes) -> Block | None:
        """Take a CONTINUATION frame; the block, if it was the last of it."""
        if self.begun is None or self.begun[0] != stream:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "CONTINUATION of nothing")
        _, first, block = self.begun
        block += payload
        if len(block) > LARGEST_BLOCK or not (payload or flags & frames.END_HEADERS):
            raise ConnectionFault(Fault.ENHANCE_YOUR_CALM, "headers without end")
        if not flags & frames.END_HEADERS:
            return None
        self.begun = None
        return self._read(first, stream, bytes(block))

    def _read(self, flags: int, stream: int, block: bytes) -> Block:
        try:
            headers = self._decoder.decode(block)
        except hpack.TooLong:
            headers = None
        except hpack.Damaged as wrong:
            raise ConnectionFault(Fault.COMPRESSION_ERROR, str(wrong)) from None
        return Block(stream, bool(flags & frames.END_STREAM), headers)


def _bare(flags: int, payload: bytes) -> bytes:
    """A HEADERS frame's part of the block."""
    skipped = 5 if flags & frames.PRIORITIZED else 0
    if flags & frames.PADDED:
        return frames.unpadded(payload, skipped)
    if len(payload) < skipped:
        raise ConnectionFault(Fault.FRAME_SIZE_ERROR, "HEADERS of a wrong size")
    return payload[skipped:]
