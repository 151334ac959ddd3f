"""The body of a call as it comes, cut into messages.

A large message is received into one piece of memory of its size, so that the kernel can write it
where it stays. The memory is only taken up as bytes come, whatever size a client announces.
"""

from collections import deque

import numpy as np

from sublet.serving.frontend.grpc import calls
from sublet.serving.frontend.grpc.calls import PREFIX, Data, Memory

LARGE = 1 << 16
"""Bytes from which on a message has memory of its own."""
_BEGINNING = 1024
"""Bytes of a large message that are there when its memory is chosen."""
_LEAST = 1 << 18
"""What a large message counts for, however little of it has come: it has a mapping of its own,
of which a process has some ten thousand."""


class Incoming:
    """The body of one call. `messages` are complete; whoever reads them takes them out."""

    __slots__ = ("_begun", "_came", "_encoding", "_large", "_limit", "_memory", "messages")

    def __init__(self, encoding: bytes, limit: int, memory: Memory | None) -> None:
        self.messages: deque[Data] = deque()
        self._encoding = encoding
        self._limit = limit
        self._memory = memory
        self._begun: bytes | bytearray = b""
        """Of a message that is small, or whose size is not known."""
        self._large: memoryview | None = None
        self._came = 0  # Bytes of the large message that are there.

    @property
    def cut_off(self) -> bool:
        return bool(self._begun) or self._large is not None

    @property
    def held(self) -> int:
        return len(self._begun) + self._came + sum(map(len, self.messages))

    @property
    def cost(self) -> int:
        """Bytes that this counts for in the memory budget."""
        if self._large is None:
            return self.held
        return self.held - self._came + max(self._came, min(_LEAST, len(self._large)))

    def place(self) -> memoryview | None:
        """Where the next bytes of a large message go; `came` says how many were put there."""
        return None if self._large is None else self._large[self._came :]

    def came(self, size: int) -> None:
        """Note that so many bytes were put into the place."""
        assert self._large is not None
        self._came += size
        if self._came == len(self._large):
            message, self._large, self._came = self._large, None, 0
            self.messages.append(message)

    def take(self, piece: Data) -> None:
        """Take the next bytes; a message of its own that comes as `bytes` is not copied. Raises
        ServingError for what is no message."""
        if self._large is not None:
            piece = self._fill(self._large, piece)
            if not piece:
                return
        if not self._begun:
            self._begun = bytes(piece)
        else:
            if isinstance(self._begun, bytes):
                self._begun = bytearray(self._begun)
            self._begun += piece
        while len(self._begun) >= PREFIX and self._cut():
            pass

    def _cut(self) -> bool:
        """Take a message out of what has begun; False if there is none yet."""
        begun = self._begun
        size = int.from_bytes(begun[1:PREFIX], "big")
        if size > self._limit:
            raise calls.too_large(size, self._limit)
        end = PREFIX + size
        if len(begun) >= end:
            self._begun = begun[end:]
            message = bytes(begun[PREFIX:end])
            self.messages.append(calls.unpack(begun[0], message, self._encoding, self._limit))
            return True
        if size >= LARGE and len(begun) >= PREFIX + _BEGINNING and not begun[0]:
            first = begun[PREFIX:]
            self._large = _plain(size) if self._memory is None else self._memory(size, first)
            self._begun = b""
            self._fill(self._large, first)
        return False

    def _fill(self, large: memoryview, piece: Data) -> Data:
        """Put bytes into the large message; gives those behind it."""
        size = min(len(piece), len(large) - self._came)
        large[self._came : self._came + size] = memoryview(piece)[:size]
        self.came(size)
        return piece[size:]


def _plain(size: int) -> memoryview:
    # Unlike a bytearray, it is no page of memory before it is written to.
    return np.empty(size, np.uint8).data
