"""Listens for gRPC, and drains."""

import asyncio
import socket
import ssl
from collections.abc import Sequence

from sublet.serving.desk import Desk
from sublet.serving.grpc.calls import LARGEST_MESSAGE, Methods
from sublet.serving.grpc.connection import BUFFER, Connection
from sublet.serving.grpc.health import Health
from sublet.serving.grpc.inference import Inference
from sublet.serving.grpc.models import Models
from sublet.serving.grpc.prediction import Prediction
from sublet.serving.room import Room


class GrpcServer:
    """The gRPC half of a front end. Made and used within a running event loop."""

    def __init__(
        self, desk: Desk, largest_message: int = LARGEST_MESSAGE, room: int | None = None
    ) -> None:
        self.health = Health()
        self.room = Room(room)
        self._largest = largest_message
        self._buffer = memoryview(bytearray(BUFFER))
        self._methods: Methods = {
            **Prediction(desk).methods(),
            **Models(desk).methods(),
            **self.health.methods(),
            **Inference(desk, self.health).methods(),
        }
        self._servers: list[asyncio.Server] = []
        self._connections: set[Connection] = set()
        self._draining = False
        self._empty = asyncio.Event()
        self._empty.set()

    async def listen(
        self, sockets: Sequence[socket.socket], secure: ssl.SSLContext | None = None
    ) -> None:
        """Accept clients on TCP or Unix sockets that listen already; `drain` closes them.

        `secure` is for TCP: who may open a Unix socket, its permissions say.
        """
        loop = asyncio.get_running_loop()
        for each in sockets:
            if each.family == socket.AF_UNIX:
                server = await loop.create_unix_server(self._connect, sock=each)
            else:
                server = await loop.create_server(self._connect, sock=each, ssl=secure)
            self._servers.append(server)

    async def drain(self, seconds: float) -> None:
        """Take nothing new and answer what is under way; what takes longer than that is ended."""
        self._draining = True
        self.health.change(False)
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.drain()
        try:
            await asyncio.wait_for(self._empty.wait(), seconds)
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()
            await self._empty.wait()

    def _connect(self) -> Connection:
        return Connection(
            self._methods, self.room, self._buffer, self._largest, self._made, self._lost
        )

    def _made(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._empty.clear()
        if self._draining:
            connection.drain()  # it was accepted while the socket was being closed

    def _lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()
