"""Who is at the other end of a connection, as far as the kernel says."""

import contextlib
import ipaddress
import socket
import struct
from collections.abc import Iterator

from sublet.channel import peers

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_ESTABLISHED = "01"
_NOBODY = 65534
"""Stands for users of another namespace: any of them."""

_Address = tuple[str, int]


class Peer:
    """One client. `owner`: it is the server's own user, or root, over a Unix socket."""

    __slots__ = ("_ends", "_user", "owner")

    def __init__(self, owner: bool = False, user: int | None = None) -> None:
        self.owner = owner
        self._user = user
        self._ends: tuple[_Address, _Address] | None = None

    @classmethod
    def of(cls, sock: socket.socket) -> "Peer":
        if sock.family == socket.AF_UNIX:
            return cls(peers.is_ours(sock), peers.user_of(sock))
        peer = cls()
        with contextlib.suppress(OSError, ValueError):
            peer._ends = _normal(*sock.getpeername()[:2]), _normal(*sock.getsockname()[:2])
        return peer

    def user(self) -> int | None:
        """The user whose program this is; None if it is not on this machine, or not known."""
        if self._user is None and self._ends is not None:
            # Each end of a connection within the machine has a row, with its user.
            self._user = next((user for ends, user in _rows() if ends == self._ends), None)
            self._ends = None
        return None if self._user == _NOBODY else self._user


def _rows() -> Iterator[tuple[tuple[_Address, _Address], int]]:
    """The ends of all connections that are open, the own end first, and whose each is."""
    for table in _TABLES:
        with contextlib.suppress(OSError), open(table, encoding="ascii") as file:
            next(file)
            for line in file:
                words = line.split()
                if words[3] == _ESTABLISHED:
                    yield (_address(words[1]), _address(words[2])), int(words[7])


def _address(text: str) -> _Address:
    host, _, port = text.partition(":")
    words = [int(host[at : at + 8], 16) for at in range(0, len(host), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    # The kernel prints words of its own byte order.
    packed = struct.pack(f"={len(words)}I", *words)
    return _normal(socket.inet_ntop(family, packed), int(port, 16))


def _normal(host: str, port: int) -> _Address:
    """The same text for an address of IPv4 and what IPv6 calls it."""
    found = ipaddress.ip_address(host)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found), port
