"""The sockets that the server listens on. The server keeps them, so a front end's end loses nobody.

They are bound before anything else is done, so that a used port is said at once, and listen only
when the models are ready, so that whoever connects is served.
"""

import contextlib
import errno
import ipaddress
import os
import socket
import stat

from sublet.errors import BadRequest, WorldError

_BACKLOG = 1024


class Listeners:
    """Sockets by protocol, `rest` or `grpc`. Each front end has one of its own for every TCP
    port, so that the kernel spreads connections over them; a Unix socket is shared."""

    def __init__(self, frontends: int) -> None:
        self._frontends = frontends
        self._sockets: dict[str, list[list[socket.socket]]] = {}
        """By protocol: for each address, one socket for all or one for each front end."""
        self._paths: dict[str, tuple[int, int]] = {}
        """Of Unix sockets, and which file each was."""
        self.public: list[str] = []  # Protocols that other machines can reach.

    def open_tcp(self, protocol: str, host: str, port: int, flag: str) -> int:
        """Take a port, 0 for any free one; the port."""
        try:
            facts = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, OverflowError, UnicodeError) as error:
            raise BadRequest(
                f"--host {host}: {getattr(error, 'strerror', None) or error}.",
                "Write 127.0.0.1 for this machine only, or 0.0.0.0 for everybody.",
            ) from None
        family, address = facts[0][0], facts[0][4]
        try:
            # Without SO_REUSEPORT, so that another server on this port is found.
            sockets = [_bound(family, address, share=False)]
            if self._frontends > 1:
                address = (address[0], sockets[0].getsockname()[1], *address[2:])
                sockets.pop().close()
                for _ in range(self._frontends):
                    sockets.append(_bound(family, address, share=True))
        except OSError as error:
            self.close()
            raise _refusal(f"{host}:{port}", flag, error) from None
        self._sockets.setdefault(protocol, []).append(sockets)
        taken, port = sockets[0].getsockname()[:2]
        if not ipaddress.ip_address(taken).is_loopback:
            self.public.append(protocol)
        return int(port)

    def open_unix(self, protocol: str, path: str, flag: str) -> None:
        """Take a path, also from another server, as gRPC does: clients come here from now on."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISSOCK(os.stat(path).st_mode):
                    os.unlink(path)
            sock.bind(path)
            self._paths[path] = _identity(path)
        except OSError as error:
            sock.close()
            self.close()
            raise _refusal(path, flag, error) from None
        self._sockets.setdefault(protocol, []).append([sock])

    def listen(self) -> None:
        """From now on whoever connects waits for a front end."""
        for sock in self._all():
            try:
                sock.listen(_BACKLOG)
            except OSError as error:
                raise _refusal(str(sock.getsockname()), "--port", error) from None

    def descriptors(self, protocol: str, frontend: int) -> tuple[int, ...]:
        """The descriptors that this front end listens on."""
        return tuple(
            sockets[frontend % len(sockets)].fileno() for sockets in self._sockets.get(protocol, ())
        )

    def close(self) -> None:
        """Let go of them; front ends that have them still listen."""
        # First this: the number of the file is not used again while its socket is open.
        for path, identity in self._paths.items():
            with contextlib.suppress(OSError):
                if _identity(path) == identity:  # Else another server has taken it.
                    os.unlink(path)
        for sock in self._all():
            sock.close()
        self._sockets, self._paths = {}, {}

    def _all(self) -> list[socket.socket]:
        return [sock for groups in self._sockets.values() for sockets in groups for sock in sockets]


def _bound(family: int, address: tuple[object, ...], share: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if share:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def _identity(path: str) -> tuple[int, int]:
    facts = os.stat(path)
    return facts.st_dev, facts.st_ino


def _refusal(where: str, flag: str, error: OSError) -> WorldError:
    if error.errno == errno.EADDRINUSE:
        return WorldError(
            f"{where} is in use.", f"End the server that has it, or choose another with {flag}."
        )
    if error.errno == errno.EACCES:
        return WorldError(
            f"{where}: permission denied.", f"Choose a port above 1023 or your own path: {flag}."
        )
    return WorldError(f"{where}: {error.strerror or error}.", f"Choose another with {flag}.")
