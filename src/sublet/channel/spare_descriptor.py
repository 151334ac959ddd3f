"""A descriptor that is kept for the moment when there are no others.

A process that has none left cannot take in who connects, and is woken for it again and again. With
the spare one it takes the connection in and hangs up: the client knows, and others go on.
"""

from __future__ import annotations

import errno
import os
import socket

SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""What accepting a connection fails with when something is short, and not with the client."""


class Spare:
    """Used by one thread."""

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
        """It is not needed any more."""
        if self._number >= 0:
            os.close(self._number)
            self._number = -1


def _open() -> int:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
