"""Small JSON messages with descriptors, between the broker, its nurseries and its keepers.

Over SOCK_SEQPACKET sockets. Any of these processes may hang, so none waits for another to read:
`send` gives up at once, and a `Link` keeps a limited number of unread packets. What cannot be read
as a message is dropped.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import struct
from collections import deque
from typing import Any

_LARGEST = 1 << 16
_MOST_DESCRIPTORS = 8
_CREDENTIALS = struct.Struct("3i")
MOST_WAITING = 64
"""Unread packets that a link keeps; later ones are dropped."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two sockets that are connected with each other."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def peer(sock: socket.socket) -> tuple[int, int]:
    """The process and the user that created the other end."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return pid, uid


def send(sock: socket.socket, packet: dict[str, Any], descriptors: list[int] | None = None) -> bool:
    """Send one packet; False if the other end is gone, or does not read."""
    data = json.dumps(packet).encode()
    beside = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors or []))
    try:
        # Not socket.send_fds: it drops the flags.
        sock.sendmsg([data], [beside] if descriptors else [], socket.MSG_DONTWAIT)
    except OSError:
        return False
    return True


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next packet and its descriptors; None if the other end is gone.

    Something else than a message counts as an empty packet, and its descriptors are closed.
    """
    try:
        try:
            received = socket.recv_fds(sock, _LARGEST, _MOST_DESCRIPTORS)
        except ConnectionResetError:
            # The other end is gone without having read all. What it has sent itself comes next.
            received = socket.recv_fds(sock, _LARGEST, _MOST_DESCRIPTORS)
    except BlockingIOError:
        return {}, []
    except OSError:
        return None
    data, descriptors, flags, _ = received
    if not data:
        close(descriptors)
        return None
    for number in descriptors:
        os.set_inheritable(number, False)
    packet: object = None
    if not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        with contextlib.suppress(ValueError, RecursionError):
            packet = json.loads(data)
    if not isinstance(packet, dict):
        close(descriptors)
        return {}, []
    return packet, descriptors


def close(descriptors: list[int]) -> None:
    """Close descriptors that nobody will use."""
    for number in descriptors:
        os.close(number)


class Link:
    """One end of a connection whose other end may not read for a while.

    Packets keep their order. Of those with the same `slot` only the last one is kept; beyond
    MOST_WAITING, packets are dropped. While `waiting`, its owner calls `flush` whenever the socket
    can be written.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._waiting: deque[tuple[str, bytes]] = deque()

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def waiting(self) -> bool:
        """Whether there are packets that could not be sent yet."""
        return bool(self._waiting)

    def put(self, packet: dict[str, Any], slot: str = "") -> bool:
        """Send a packet, now or later; False if the other end is gone."""
        if slot:
            self._waiting = deque(entry for entry in self._waiting if entry[0] != slot)
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append((slot, json.dumps(packet).encode()))
        return self.flush()

    def flush(self) -> bool:
        """Send waiting packets, as far as possible; False if the other end is gone."""
        while self._waiting:
            try:
                self.sock.send(self._waiting[0][1])
            except BlockingIOError:
                return True
            except OSError:
                self._waiting.clear()
                return False
            self._waiting.popleft()
        return True

    def receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """As the function `receive`; an empty packet if there is none."""
        return receive(self.sock)

    def close(self) -> None:
        self.sock.close()
