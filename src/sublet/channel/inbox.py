"""What one end receives: packets, and the descriptors that came with them."""

from __future__ import annotations

import os
import socket
import struct
from typing import NamedTuple

from .records import LARGEST_PACKET, MOST_DESCRIPTORS, Malformed

_INT = struct.calcsize("i")
_SPACE = socket.CMSG_SPACE(MOST_DESCRIPTORS * _INT)
_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
_CUT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)


class Packet(NamedTuple):
    """One packet; its descriptors are the receiver's to close."""

    data: bytes | bytearray
    descriptors: list[int]


def new_buffer() -> bytearray:
    """Room for one packet, and to see that it is too large."""
    return bytearray(LARGEST_PACKET + 1)


class Inbox:
    """Packets from one socket, as `make` has them: arrays in a bytearray can be written to.

    Used by one thread at a time. Inboxes that are read by turns may share a `buffer`.
    """

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
        """The next packet; None if there is none now. Raises EOFError when the other end is gone,
        Malformed if it sends what is no packet."""
        try:
            size, beside, flags, _ = self._sock.recvmsg_into([self._view], _SPACE, _FLAGS)
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
