"""Who is at the other end of a Unix socket, as the kernel says."""

import errno
import os
import socket
import struct

_CREDENTIALS = struct.Struct("3i")  # Process, user, group.
_ROOT = 0


def process_of(sock: socket.socket) -> int:
    """The number of the process that connected, or that listens; it may be gone."""
    return _credentials(sock)[0]


def user_of(sock: socket.socket) -> int:
    """The user who connected, or who listens, when this connection was made."""
    return _credentials(sock)[1]


def _credentials(sock: socket.socket) -> tuple[int, int, int]:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, group = _CREDENTIALS.unpack(raw)
    return process, user, group


def is_ours(sock: socket.socket) -> bool:
    """Whether the other end is this process's user, or root, who could be anybody."""
    return user_of(sock) in (os.geteuid(), _ROOT)


SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""What accepting a connection fails with when something is short, and not with the client."""


class Spare:
    """A descriptor in reserve, for one thread: with it, a client can be accepted and turned away
    when there are no others."""

    def __init__(self) -> None:
        self._number = _open()

    def turn_away(self, listener: socket.socket) -> bool:
        """Hang up on the next client; whether that was possible."""
        if self._number < 0:
            self._number = _open()
            return False
        os.close(self._number)
        try:
            listener.accept()[0].close()
        except OSError:
            return False
        finally:
            self._number = _open()
        return True

    def close(self) -> None:
        if self._number >= 0:
            os.close(self._number)
            self._number = -1


def _open() -> int:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
