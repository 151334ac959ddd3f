"""The directory that belongs to an engine's socket: its owner makes it, and either removes it."""

from __future__ import annotations

_SOCKET, _FILES = ".sock", ".files"


def files_of(socket: str) -> str:
    """The directory of this socket."""
    return socket.removesuffix(_SOCKET) + _FILES
