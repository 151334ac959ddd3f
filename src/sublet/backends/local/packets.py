"""Small JSON messages over a SOCK_SEQPACKET socket, with descriptors.

Between the broker, its nurseries and its keepers: all are Sublet's own processes.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

_LARGEST = 1 << 16


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, packet: dict[str, Any], descriptors: list[int] | None = None) -> bool:
    """Send one packet; False if the other end is gone."""
    data = json.dumps(packet).encode()
    try:
        if descriptors:
            socket.send_fds(sock, [data], descriptors)
        else:
            sock.send(data)
    except OSError:
        return False
    return True


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next packet and its descriptors; None when the other end is gone."""
    try:
        data, descriptors, _, _ = socket.recv_fds(sock, _LARGEST, 8)
    except BlockingIOError:
        return {}, []
    except OSError:
        return None
    if not data:
        return None
    for number in descriptors:
        os.set_inheritable(number, False)
    packet = json.loads(data)
    return (packet if isinstance(packet, dict) else {}), descriptors
