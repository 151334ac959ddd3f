"""Accepts clients on listening sockets, up to a limit.

It is our own, and not the event loop's, for two reasons. It asks who is at the other end of a Unix
socket. And a process without free descriptors would be woken again and again by connections that it
cannot accept: those are closed here, so that clients know, and others go on.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Sequence

from sublet.channel import peers
from sublet.channel.peers import SHORT, Spare

_AT_ONCE = 64
"""Connections that are accepted before others have their turn."""
_PAUSE = 1.0
"""Seconds after which it is tried again when not even hanging up is possible."""

log = logging.getLogger(__name__)


class Acceptor:
    """For one protocol. `make` makes the protocol object of a client, by whether that is the
    server's own user; `inside` is how many there are."""

    def __init__(
        self,
        make: Callable[[bool], asyncio.BaseProtocol],
        inside: Callable[[], int],
        most: int,
        handshake: float,
    ) -> None:
        self._make = make
        self._inside = inside
        self._most = most
        self._handshake = handshake  # Seconds that TLS may take to begin.
        self._loop = asyncio.get_running_loop()
        self._listeners: list[socket.socket] = []
        self._entering: set[asyncio.Task[None]] = set()
        self._spare = Spare()

    def open(
        self, sockets: Sequence[socket.socket], backlog: int, secure: ssl.SSLContext | None = None
    ) -> None:
        """Accept clients from now on. `secure` is for TCP; a Unix socket has its permissions."""
        for each in sockets:
            each.setblocking(False)
            each.listen(backlog)
            self._listeners.append(each)
            self._watch(each, None if each.family == socket.AF_UNIX else secure)

    def close(self) -> None:
        for each in self._listeners:
            self._loop.remove_reader(each.fileno())
            each.close()
        self._listeners.clear()
        self._spare.close()
        for task in self._entering:
            task.cancel()

    def _watch(self, listener: socket.socket, secure: ssl.SSLContext | None) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener.fileno(), self._accept, listener, secure)

    def _accept(self, listener: socket.socket, secure: ssl.SSLContext | None) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in SHORT or not self._spare.turn_away(listener):
                    log.warning("cannot take in clients: %s; trying again", error.strerror)
                    self._loop.remove_reader(listener.fileno())
                    self._loop.call_later(_PAUSE, self._watch, listener, secure)
                return
            if self._inside() + len(self._entering) >= self._most:
                sock.close()
                continue
            task = self._loop.create_task(self._enter(sock, secure))
            self._entering.add(task)
            task.add_done_callback(self._entering.discard)

    async def _enter(self, sock: socket.socket, secure: ssl.SSLContext | None) -> None:
        owner = False
        more = {} if secure is None else {"ssl_handshake_timeout": self._handshake}
        # Whatever goes wrong here is the client's affair: it has gone, or speaks no TLS.
        with contextlib.suppress(OSError):
            try:
                if sock.family == socket.AF_UNIX:
                    owner = peers.is_ours(sock)
                else:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setblocking(False)
                await self._loop.connect_accepted_socket(
                    lambda: self._make(owner), sock, ssl=secure, **more
                )
            except BaseException:
                sock.close()
                raise
