"""Who is at the other end of a Unix socket, as the kernel says."""

from __future__ import annotations

import os
import socket
import struct

_CREDENTIALS = struct.Struct("3i")
"""Process, user, group."""
_ROOT = 0


def user_of(sock: socket.socket) -> int:
    """The user who connected, or who listens, when this connection was made."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])


def is_ours(sock: socket.socket) -> bool:
    """Whether the other end is this process's user, or root, who could be anybody."""
    return user_of(sock) in (os.geteuid(), _ROOT)
