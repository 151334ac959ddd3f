"""Listens for gRPC, sweeps and drains."""

import asyncio
import socket
import ssl
import time
from collections.abc import Sequence

from sublet.serving.access import Access
from sublet.serving.frontend.acceptor import Acceptor
from sublet.serving.frontend.grpc.calls import LARGEST_MESSAGE, Methods
from sublet.serving.frontend.grpc.connection import BUFFER, Connection
from sublet.serving.frontend.grpc.health import Health
from sublet.serving.frontend.grpc.oip import InferenceService
from sublet.serving.frontend.grpc.tfserving import ModelService, PredictionService
from sublet.serving.frontend.limits import Limits, MemoryBudget
from sublet.serving.frontend.model_backend import ModelBackend

_BACKLOG = 1024
_REFUSED = 32
"""Connections beyond the limit that get an answer; more are closed at once."""


class GrpcServer:
    """The gRPC half of a front end. Made and used within a running event loop."""

    def __init__(
        self,
        backend: ModelBackend,
        largest_message: int = LARGEST_MESSAGE,
        budget: int | None = None,
        limits: Limits | None = None,
        access: Access | None = None,
    ) -> None:
        self.health = Health()
        self.budget = MemoryBudget(budget)
        self.largest = largest_message
        self.limits = Limits() if limits is None else limits
        self.access = Access() if access is None else access
        self.buffer = memoryview(bytearray(BUFFER))
        self.methods: Methods = {
            **PredictionService(backend).methods(),
            **ModelService(backend).methods(),
            **self.health.methods(),
            **InferenceService(backend, self.health).methods(),
        }
        self.connections: set[Connection] = set()
        self.streams = 0
        self.draining = False
        self._acceptor = Acceptor(
            lambda owner: Connection(self, owner),
            lambda: len(self.connections),
            self.limits.connections + _REFUSED,
            self.limits.slow,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    async def listen(
        self, sockets: Sequence[socket.socket], secure: ssl.SSLContext | None = None
    ) -> None:
        """Accept clients on bound TCP or Unix sockets; `drain` closes them. `secure` is for TCP."""
        self._acceptor.open(sockets, _BACKLOG, secure)
        if self._timer is None:
            self._sweep()

    async def drain(self, seconds: float) -> None:
        """Take nothing new and answer what is under way; what takes longer than that is ended."""
        self.draining = True
        self.health.change(False)
        self._acceptor.close()
        for connection in list(self.connections):
            connection.drain()
        if self.connections:
            self._empty.clear()
        try:
            await asyncio.wait_for(self._empty.wait(), seconds)
        except TimeoutError:
            for connection in list(self.connections):
                connection.abort()
            await self._empty.wait()
        if self._timer is not None:
            self._timer.cancel()

    def change(self, ready: bool) -> None:
        """Tell whoever watches that the server is ready, or is not."""
        self.health.change(ready and not self.draining)

    def left(self) -> None:
        if not self.connections:
            self._empty.set()

    def _sweep(self) -> None:
        now = time.monotonic()
        for connection in list(self.connections):
            connection.sweep(now)
        self._timer = asyncio.get_running_loop().call_later(self.limits.sweep, self._sweep)
