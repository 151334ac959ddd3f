"""A port that is held for a program until the program listens on it.

A bound socket that does not listen takes no connection, and the kernel gives its port to nobody who
asks for any port. Whoever names this very port may have it as well, if its socket sets SO_REUSEADDR
as servers do, TensorFlow's among them. So several may hold one port at a time, and it is handed on
without a moment in which it is free.
"""

from __future__ import annotations

import socket


def hold(port: int = 0) -> socket.socket:
    """A socket that holds this port, or one that is free; closing it lets the port go.

    Raises OSError if somebody listens there, or has it for himself.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # All addresses: TensorFlow's servers listen there, whatever the cluster's addresses are.
        held.bind(("", port))
    except OSError:
        held.close()
        raise
    return held


def number(held: socket.socket) -> int:
    """The port that is held."""
    return int(held.getsockname()[1])
