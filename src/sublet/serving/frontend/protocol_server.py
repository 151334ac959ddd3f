"""What the servers of REST and gRPC share: they accept clients up to a limit, sweep, and drain.

Clients are accepted here, and not by the event loop, for two reasons. We ask who is at the other
end of a Unix socket. And a process without free descriptors would be woken again and again by
connections that it cannot accept: those are closed here, so that clients know, and others go on.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Iterable
from typing import Generic, TypeVar

from sublet.channel.peers import SHORT, Spare
from sublet.serving.access import Access
from sublet.serving.frontend.limits import Limits
from sublet.serving.frontend.peer import Peer

_BACKLOG = 1024
_REFUSED = 32
"""Connections beyond the limit that get an answer; more are closed at once."""
_AT_ONCE = 64
"""Connections that are accepted before others have their turn."""
_PAUSE = 1.0
"""Seconds after which it is tried again when not even hanging up is possible."""

log = logging.getLogger(__name__)


class ClientConnection(asyncio.BaseProtocol):
    """The connection of one client, which adds itself to those of its server and leaves them."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._since = time.monotonic()  # When what a sweep waits for began.
        self._clogged = False
        """Whether the client does not read its answers as fast as it gets them."""
        self._unread = 0  # Bytes that it had not read at the last look.

    def sweep(self, now: float) -> None:
        """Cut off whoever is too slow. Called about once per second."""
        raise NotImplementedError

    def drain(self) -> None:
        """Take nothing new, and end when what runs is answered."""
        raise NotImplementedError

    def abort(self) -> None:
        """Close the connection at once, whatever is in flight."""
        self._transport.abort()

    def pause_writing(self) -> None:
        self._clogged = True
        self._since = time.monotonic()
        self._unread = self._transport.get_write_buffer_size()

    def _reads_nothing(self, now: float, patience: float) -> bool:
        """Whether the client has read nothing of what it was sent for so long."""
        unread = self._transport.get_write_buffer_size()
        if unread < self._unread:
            self._unread, self._since = unread, now
        return now - self._since > patience


C = TypeVar("C", bound=ClientConnection)


class ProtocolServer(Generic[C]):
    """The server of one protocol. It runs on the event loop in which it listens."""

    def __init__(self, limits: Limits | None, access: Access | None) -> None:
        self.limits = limits or Limits()
        self.access = access or Access()
        self.connections: set[C] = set()
        self.draining = False
        self._loop: asyncio.AbstractEventLoop
        self._listeners: list[socket.socket] = []
        self._entering: set[asyncio.Task[None]] = set()
        self._spare = Spare()
        self._timer: asyncio.TimerHandle | None = None

    def connect(self, peer: Peer) -> asyncio.BaseProtocol:
        """A new client's connection."""
        raise NotImplementedError

    def change(self, ready: bool) -> None:
        """Tell whoever watches that the server is ready, or is not."""

    async def listen(
        self, sockets: Iterable[socket.socket], secure: ssl.SSLContext | None = None
    ) -> None:
        """Accept clients on bound sockets, which are ours from now on. `secure` is for TCP; a Unix
        socket has its permissions."""
        self._loop = asyncio.get_running_loop()
        for each in sockets:
            each.setblocking(False)
            each.listen(_BACKLOG)
            self._listeners.append(each)
            self._watch(each, None if each.family == socket.AF_UNIX else secure)
        if self._timer is None:
            self.sweep()

    async def drain(self, seconds: float) -> bool:
        """Accept nobody, finish what runs, end what takes longer; whether all ended in time."""
        self.draining = True
        self._shut()
        for connection in list(self.connections):
            connection.drain()
        until = time.monotonic() + seconds
        while self.connections and time.monotonic() < until:
            await asyncio.sleep(0.02)
        in_time = not self.connections
        await self.close()
        return in_time

    async def close(self) -> None:
        """End all connections at once."""
        self._shut()
        for connection in list(self.connections):
            connection.abort()
        if self._timer is not None:
            self._timer.cancel()
        while self.connections:
            await asyncio.sleep(0)

    def sweep(self) -> None:
        """Look at the clocks of all connections, and again after a while."""
        now = time.monotonic()
        for connection in list(self.connections):
            connection.sweep(now)
        self._timer = self._loop.call_later(self.limits.sweep, self.sweep)

    def _shut(self) -> None:
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
            inside = len(self.connections) + len(self._entering)
            if inside >= self.limits.connections + _REFUSED:
                sock.close()
                continue
            task = self._loop.create_task(self._enter(sock, secure))
            self._entering.add(task)
            task.add_done_callback(self._entering.discard)

    async def _enter(self, sock: socket.socket, secure: ssl.SSLContext | None) -> None:
        more = {} if secure is None else {"ssl_handshake_timeout": self.limits.slow}
        # Whatever goes wrong here is the client's affair: it has gone, or speaks no TLS.
        with contextlib.suppress(OSError):
            try:
                peer = Peer.of(sock)
                if sock.family != socket.AF_UNIX:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setblocking(False)
                await self._loop.connect_accepted_socket(
                    lambda: self.connect(peer), sock, ssl=secure, **more
                )
            except BaseException:
                sock.close()
                raise
