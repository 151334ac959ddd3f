"""A gRPC front end in a thread of this process, in front of a stand-in backend."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from sublet.serving.access import Access
from sublet.serving.frontend.grpc.calls import LARGEST_MESSAGE
from sublet.serving.frontend.grpc.connection import Connection
from sublet.serving.frontend.grpc.server import GrpcServer
from sublet.serving.frontend.limits import Limits
from sublet.serving.frontend.shared_memory import Regions
from sublet.serving.tls import Tls, context
from support.grpc_backend import StandInBackend
from support.sandbox import PATIENCE

T = TypeVar("T")


class Served:
    """Where it listens, and ways into its loop."""

    backend: StandInBackend
    server: GrpcServer
    regions: Regions | None = None

    def __init__(
        self,
        path: Path,
        largest: int,
        budget: int | None,
        tls: Tls | None,
        limits: Limits,
        access: Access,
    ) -> None:
        self.path = path
        self._limits = limits
        self._access = access
        self._budget = budget
        self._secure = None if tls is None else context(tls)
        self._largest = largest
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self.port = self._tcp.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._unix = socket.socket(socket.AF_UNIX)
        self._unix.bind(str(path))
        self._unix.listen()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._main()))

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        if self._thread.is_alive():
            self.call(self._stop.set)
            self._thread.join()

    def connections(self) -> list[Connection]:
        """Of all clients now."""
        return list(self.server.connections)

    def call(self, act: Callable[[], T]) -> T:
        """What a function gives within the loop."""

        async def within() -> T:
            return act()

        return self.run(within())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something in the loop to become true."""

        async def watch() -> None:
            while not condition():
                await asyncio.sleep(0.001)

        self.run(asyncio.wait_for(watch(), PATIENCE))

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.backend = StandInBackend()
        self.server = GrpcServer(
            self.backend, self._largest, self._budget, self._limits, self._access, self.regions
        )
        await self.server.listen([self._tcp, self._unix], self._secure)
        self._ready.set()
        await self._stop.wait()
        await self.server.drain(0)


@contextmanager
def served(
    folder: Path,
    largest: int = LARGEST_MESSAGE,
    budget: int | None = None,
    tls: Tls | None = None,
    limits: Limits | None = None,
    access: Access | None = None,
    regions: Regions | None = None,
) -> Iterator[Served]:
    """A front end for the time of a test. Unless it is said otherwise, its own user may reload over
    the Unix socket."""
    rules = access or Access(reload=True)
    server = Served(folder / "grpc.sock", largest, budget, tls, limits or Limits(), rules)
    server.regions = regions
    server.start()
    try:
        yield server
    finally:
        server.stop()
