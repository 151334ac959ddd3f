"""The HTTP server: listens, sweeps and drains. Knows nothing of what is served."""

import asyncio
import socket
import ssl
import time

from sublet.serving.access import Access
from sublet.serving.frontend.acceptor import Acceptor
from sublet.serving.frontend.limits import Limits
from sublet.serving.frontend.model_backend import ModelBackend
from sublet.serving.frontend.rest import messages
from sublet.serving.frontend.rest.connection import Connection, Handler
from sublet.serving.frontend.rest.heads import Heads
from sublet.serving.frontend.rest.router import Router

_BACKLOG = 1024
_REFUSED = 32
"""Connections beyond the limit that get an answer; more are closed at once."""


class Server:
    """One per front end. Runs on the event loop that starts it; uvloop makes it faster."""

    def __init__(
        self,
        backend: ModelBackend,
        limits: Limits | None = None,
        handler: Handler | None = None,
        cors: bool = False,
        access: Access | None = None,
    ) -> None:
        self.limits = Limits() if limits is None else limits
        self.access = Access() if access is None else access
        self.heads = Heads(self.limits)
        self.handler = Router(backend, self.limits) if handler is None else handler
        self.lines = messages.CORS if cors else b""
        self.connections: set[Connection] = set()
        self.draining = False
        self.coming = 0
        self._acceptor: Acceptor | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, *sockets: socket.socket, secure: ssl.SSLContext | None = None) -> None:
        """Serve on these bound sockets, TCP or Unix. The server owns them from now on."""
        if self._acceptor is None:
            self._acceptor = Acceptor(
                lambda owner: Connection(self, owner),
                lambda: len(self.connections),
                self.limits.connections + _REFUSED,
                self.limits.slow,
            )
            self._sweep()
        self._acceptor.open(sockets, _BACKLOG, secure)

    async def drain(self, seconds: float) -> bool:
        """Accept nobody, finish what runs, end what takes longer; whether all ended in time."""
        self.draining = True
        self._shut()
        for connection in self.connections:
            connection.drain()
        until = time.monotonic() + seconds
        while self.connections and time.monotonic() < until:
            await asyncio.sleep(0.02)
        in_time = not self.connections
        await self.close()
        return in_time

    def change(self, ready: bool) -> None:
        """Nothing to do: REST clients ask whether it is ready."""

    async def close(self) -> None:
        self._shut()
        for connection in list(self.connections):
            connection.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self.connections:
            await asyncio.sleep(0)

    def _shut(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None

    def _sweep(self) -> None:
        messages.prefixes.date()
        now = time.monotonic()
        for connection in list(self.connections):
            connection.sweep(now)
        self._timer = asyncio.get_running_loop().call_later(self.limits.sweep, self._sweep)
