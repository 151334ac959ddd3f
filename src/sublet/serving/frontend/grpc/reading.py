"""Cuts what comes on a connection into frames.

Frames of data are handed on in pieces as they come, so that a large message is not held twice. Of
frames that mean nothing here only the kind is handed on. All others are small, and handed on whole.
"""

from collections.abc import Callable
from typing import NamedTuple

from sublet.serving.frontend.grpc import frames, hpack
from sublet.serving.frontend.grpc.frames import ConnectionFault, Fault

LARGEST_FRAME = 1 << 20
LARGEST_CONTROL = 1 << 17  # Bytes of another frame that is read.

Data = bytes | memoryview
Whole = Callable[[int, int, int, bytes], None]  # Takes a frame: kind, flags, stream, payload.
Piece = Callable[[int, Data | None, int, bool], None]
"""Takes a piece of data: its stream, its bytes or None if they are in their place, what it costs
of the window, and whether it is the last."""


class NotHttp2(Exception):
    """The client speaks another protocol."""


class Reader:
    def __init__(self, greeted: Callable[[], None], whole: Whole, piece: Piece) -> None:
        self._greeted: Callable[[], None] | None = greeted
        self._whole = whole
        self._piece = piece
        self._held = bytearray()
        self._needed = len(frames.PREFACE)  # Bytes without which there is nothing to do.
        self._inside: tuple[int, int, bool] | None = None
        """Stream, bytes to come and whether they are the last, within a frame of data."""
        self._skipped = 0  # Bytes to come of a frame that means nothing here.
        self._frames = 0  # Handed on whole.

    @property
    def begun(self) -> int | None:
        """The number of a frame of which only a part has come; not of data."""
        return self._frames if self._held else None

    @property
    def inside(self) -> tuple[int, int]:
        """Within a frame of data: its stream, and the bytes to come. Else zeros."""
        return (0, 0) if self._inside is None else self._inside[:2]

    def filled(self, size: int) -> None:
        """So many bytes of the frame of data have come, and are where they belong."""
        assert self._inside is not None
        number, missing, last = self._inside
        missing -= size
        self._inside = (number, missing, last) if missing else None
        self._piece(number, None, size, last and not missing)

    def feed(self, data: Data) -> None:
        """Take what has come, and hand on all that is complete. Views are handed on as views:
        whoever takes them copies what it keeps."""
        if self._held:
            self._held += data
            if len(self._held) < self._needed:
                return
            data = bytes(self._held)
            self._held.clear()
        rest = self._cut(data, self._greet(data)) if self._greeted else self._cut(data, 0)
        if rest < len(data):
            self._held += memoryview(data)[rest:]

    def _greet(self, data: Data) -> int:
        """Where the frames begin; the end if the greeting is not complete."""
        size = len(frames.PREFACE)
        if data[:size] != frames.PREFACE[: len(data)]:
            raise NotHttp2
        if len(data) < size:
            self._held += data
            return len(data)
        assert self._greeted is not None
        self._greeted()
        self._greeted = None
        return size

    def _cut(self, data: Data, at: int) -> int:
        """Hand on each frame from here; gives where the incomplete one begins."""
        end = len(data)
        while at < end:
            if self._inside is not None:
                at = self._go_on(data, at, *self._inside)
                continue
            if self._skipped:
                skipped = min(self._skipped, end - at)
                self._skipped -= skipped
                at += skipped
                continue
            if end - at < frames.HEAD_SIZE:
                self._needed = frames.HEAD_SIZE
                break
            high, low, kind, flags, number = frames.HEAD.unpack_from(data, at)
            size = high << 8 | low
            number &= 0x7FFFFFFF
            body = at + frames.HEAD_SIZE
            if size > LARGEST_FRAME:
                raise ConnectionFault(Fault.FRAME_SIZE_ERROR, "frame too large")
            if kind > frames.CONTINUATION:
                self._whole(kind, flags, number, b"")
                self._skipped, at = size, body
                continue
            if kind and size > LARGEST_CONTROL:
                raise ConnectionFault(Fault.ENHANCE_YOUR_CALM, "frame too large")
            if kind == frames.DATA and not flags & frames.PADDED:
                at = self._go_on(data, body, number, size, bool(flags & frames.END_STREAM))
                continue
            if end - body < size:
                self._needed = frames.HEAD_SIZE + size
                break
            at = body + size
            self._frames += 1
            self._whole(kind, flags, number, bytes(data[body:at]))
        return at

    def _go_on(self, data: Data, at: int, number: int, missing: int, last: bool) -> int:
        """Hand on more of a frame of data; gives where it ends, or what has come does."""
        piece = data[at : at + missing]
        missing -= len(piece)
        self._inside = (number, missing, last) if missing else None
        self._piece(number, piece, len(piece), last and not missing)
        return at + len(piece)


LARGEST_BLOCK = LARGEST_CONTROL  # Bytes of headers in all their frames.
MOST_FRAMES = 64  # Of one block; each costs the same, also an empty one.


class Block(NamedTuple):
    """A block of headers that is complete."""

    stream: int
    ended: bool
    """Whether they are the last that the client sends in this stream."""
    headers: hpack.Headers | None  # None if they are too many.


class Blocks:
    """The header blocks of one connection: each builds on those before, so all are read here."""

    def __init__(self) -> None:
        self._decoder = hpack.Decoder()
        self.begun: tuple[int, int, bytearray] | None = None
        """Stream, flags and bytes of incomplete headers: until they are complete, no other frame
        may come."""
        self._frames = 0  # Of those.

    def begin(self, flags: int, stream: int, payload: bytes) -> Block | None:
        """Take a HEADERS frame; the block, if that is all of it."""
        if flags & (frames.PADDED | frames.PRIORITIZED):
            payload = _bare(flags, payload)
        if flags & frames.END_HEADERS:
            return self._read(flags, stream, payload)
        self.begun = (stream, flags, bytearray(payload))
        self._frames = 1
        return None

    def go_on(self, flags: int, stream: int, payload: bytes) -> Block | None:
        """Take a CONTINUATION frame; the block, if it was the last of it."""
        if self.begun is None or self.begun[0] != stream:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "CONTINUATION of nothing")
        _, first, block = self.begun
        block += payload
        self._frames += 1
        if len(block) > LARGEST_BLOCK or self._frames > MOST_FRAMES:
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
    """The part of a HEADERS frame that belongs to the block."""
    skipped = 5 if flags & frames.PRIORITIZED else 0
    if flags & frames.PADDED:
        return frames.unpadded(payload, skipped)
    if len(payload) < skipped:
        raise ConnectionFault(Fault.FRAME_SIZE_ERROR, "HEADERS of a wrong size")
    return payload[skipped:]
