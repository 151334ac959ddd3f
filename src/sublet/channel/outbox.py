"""What one end has yet to send: records, gathered into packets, and never waited for."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from .records import FULL, MOST_DESCRIPTORS

_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_MOST_PIECES = 512
_BUFFER = 1 << 20
"""Bytes that the kernel is asked to hold; it may give less."""


class Outgoing(NamedTuple):
    """One record, in pieces, and the descriptors that travel with it."""

    pieces: Sequence[Any]
    size: int
    descriptors: Sequence[int] = ()


class Outbox:
    """Records for one socket. Any thread may put and flush; each packet goes as a whole.

    Descriptors belong to the outbox from `put` on, and are closed once they are sent.
    """

    def __init__(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        self.waiting = 0
        """Bytes that are not sent yet."""
        self._sock = sock
        self._records: deque[Outgoing] = deque()
        self._lock = threading.Lock()

    def put(self, record: Outgoing) -> None:
        """Send this with the next flush."""
        with self._lock:
            self._records.append(record)
            self.waiting += record.size

    def put_all(self, records: list[Outgoing]) -> None:
        """The same for several."""
        with self._lock:
            self._records.extend(records)
            self.waiting += sum([record.size for record in records])

    def flush(self) -> bool:
        """Send all that the kernel takes now; whether that was all. Raises OSError."""
        with self._lock:
            while self._records:
                count, pieces, descriptors = self._gather()
                try:
                    self._send(pieces, descriptors)
                except (BlockingIOError, InterruptedError):
                    return False
                for _ in range(count):
                    self.waiting -= self._records.popleft().size
                for number in descriptors:
                    os.close(number)
            return True

    def close(self) -> None:
        """Nothing more can be sent."""
        with self._lock:
            for record in self._records:
                for number in record.descriptors:
                    os.close(number)
            self._records.clear()
            self.waiting = 0

    def _gather(self) -> tuple[int, list[Any], list[int]]:
        """How many of the first records go in one packet, and what it is made of."""
        pieces: list[Any] = []
        descriptors: list[int] = []
        size = count = 0
        for record in self._records:
            if count and (
                size + record.size > FULL
                or len(pieces) + len(record.pieces) > _MOST_PIECES
                or len(descriptors) + len(record.descriptors) > MOST_DESCRIPTORS
            ):
                break
            pieces.extend(record.pieces)
            descriptors.extend(record.descriptors)
            size += record.size
            count += 1
        return count, pieces, descriptors

    def _send(self, pieces: list[Any], descriptors: list[int]) -> None:
        if descriptors:
            socket.send_fds(self._sock, pieces, descriptors, _FLAGS)
        else:
            self._sock.sendmsg(pieces, (), _FLAGS)
