"""What one end receives: packets, and the descriptors that came with them."""

import contextlib
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from .records import FULL, LARGEST_PACKET, MOST_DESCRIPTORS, Malformed

_INT = struct.calcsize("i")
_SPACE = socket.CMSG_SPACE(MOST_DESCRIPTORS * _INT)
_RECEIVE_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
_CUT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)


class Packet(NamedTuple):
    """One packet; its descriptors are the receiver's to close."""

    data: bytes | bytearray
    descriptors: list[int]


def new_buffer() -> bytearray:
    """Memory for one packet, and for a byte more, which shows that it is too large."""
    return bytearray(LARGEST_PACKET + 1)


class Inbox:
    """Packets from one socket, as bytes or as a bytearray, whose arrays can be written to. Used
    by one thread at a time; inboxes that are read by one thread may share a `buffer`."""

    def __init__(
        self,
        sock: socket.socket,
        make: type[bytes] | type[bytearray] = bytearray,
        buffer: bytearray | None = None,
    ) -> None:
        self._sock = sock
        self._make = make
        # Received into one buffer and copied from there: a new one of this size for each packet
        # would have its pages cleared again and again.
        self._view = memoryview(new_buffer() if buffer is None else buffer)

    def receive_nowait(self) -> Packet | None:
        """The next packet; None if there is none now. Raises EOFError when the other end is
        gone, Malformed if it sends what is no packet."""
        try:
            size, beside, flags, _ = self._sock.recvmsg_into([self._view], _SPACE, _RECEIVE_FLAGS)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            raise EOFError from None
        descriptors = [] if not beside else _descriptors(beside)
        if not size:
            _close(descriptors)
            raise EOFError
        if flags & _CUT:
            _close(descriptors)
            raise Malformed("a packet is too large")
        return Packet(self._make(self._view[:size]), descriptors)


def _descriptors(beside: list[tuple[int, int, bytes]]) -> list[int]:
    found: list[int] = []
    for level, kind, raw in beside:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.extend(struct.unpack(f"{len(raw) // _INT}i", raw[: len(raw) // _INT * _INT]))
    return found


def _close(descriptors: list[int]) -> None:
    for number in descriptors:
        os.close(number)


_SEND_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
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
    Descriptors belong to the outbox from `put` on, and are closed once they are sent."""

    def __init__(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        self.waiting = 0  # Bytes that are not sent yet.
        self._sock = sock
        self._records: deque[Outgoing] = deque()
        self._lock = threading.Lock()

    def put(self, record: Outgoing) -> None:
        with self._lock:
            self._records.append(record)
            self.waiting += record.size

    def put_all(self, records: list[Outgoing]) -> None:
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
            socket.send_fds(self._sock, pieces, descriptors, _SEND_FLAGS)
        else:
            self._sock.sendmsg(pieces, (), _SEND_FLAGS)
