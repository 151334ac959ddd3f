"""A REST front end in a thread, and a client that sends exactly the bytes it is given."""

import asyncio
import io
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from typing import Any, NamedTuple, TypeVar

import uvloop

from sublet.serving.access import Access
from sublet.serving.frontend.rest import Limits, Server
from sublet.serving.frontend.shared_memory import Regions
from sublet.serving.tls import REST, Tls, context
from support.numpy_backend import NumpyBackend, numpy_backend

T = TypeVar("T")


class Seen(NamedTuple):
    """A reply as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body read as JSON."""
        return json.loads(self.body)


class Client:
    """One connection."""

    def __init__(self, where: tuple[str, int] | str) -> None:
        family = socket.AF_UNIX if isinstance(where, str) else socket.AF_INET
        self.socket = socket.socket(family)
        self.socket.settimeout(60)
        try:
            self.socket.connect(where)
        except OSError:
            self.socket.close()
            raise
        self._file = _Kept(self.socket.makefile("rb", buffering=0))

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Go."""
        self._file.raw.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        """These bytes as they are."""
        self.socket.sendall(data)

    def get(self, method: str = "GET") -> Seen:
        """The next reply; a `100 Continue` before it is skipped."""
        reply = HTTPResponse(_Source(self._file), method=method)  # type: ignore[arg-type]
        reply.begin()
        body = reply.read()
        return Seen(reply.status, {k.lower(): v for k, v in reply.getheaders()}, body)

    def ask(self, method: str, path: str, body: bytes = b"", *headers: str) -> Seen:
        """One request and its reply."""
        self.send(request(method, path, body, *headers))
        return self.get(method)

    def post(self, path: str, document: Any) -> Seen:
        """JSON, or a body as it is."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return self.ask("POST", path, body)

    def ended(self) -> bool:
        """Waits for the other side to end; says whether nothing came before."""
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:
            return True


def request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    """As bytes."""
    lines = [f"{method} {path} HTTP/1.1", "Host: test", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join((*lines, "", "")).encode("latin-1") + body


class _Kept(io.BufferedReader):
    """What came of a connection; the end of a reply is not its end."""

    def close(self) -> None:
        pass


class _Source:
    """What HTTPResponse takes for a socket."""

    def __init__(self, file: _Kept) -> None:
        self._file = file

    def makefile(self, *_: Any) -> _Kept:
        return self._file


class RestServer:
    """The server, its backend and its event loop."""

    def __init__(
        self,
        limits: Limits,
        run: Callable[[Any], None],
        cors: bool,
        access: Access,
        tls: Tls | None,
        path: str,
    ) -> None:
        self.backend: NumpyBackend
        self.server: Server
        self.where = ("", 0)
        self.regions: Regions | None = None
        self._limits = limits
        self._cors = cors
        self._access = access
        self._secure = None if tls is None else context(tls, REST)
        self.path = path
        """Of a Unix socket, too, if there is one."""
        self._up = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._thread = threading.Thread(target=lambda: run(self._run()))

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.backend = numpy_backend()
        self.server = Server(
            self.backend, self._limits, cors=self._cors, access=self._access, regions=self.regions
        )
        listeners = [socket.socket()]
        listeners[0].bind(("127.0.0.1", 0))
        self.where = listeners[0].getsockname()
        if self.path:
            listeners.append(socket.socket(socket.AF_UNIX))
            listeners[1].bind(self.path)
        await self.server.listen(listeners, self._secure)
        self._up.set()
        await self._stop.wait()
        await self.server.close()

    def start(self) -> None:
        self._thread.start()
        self._up.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def client(self) -> Client:
        """A new connection."""
        return Client(self.where)

    def do(self, act: Callable[[], T]) -> T:
        """Call something in the server's thread."""

        async def acted() -> T:
            return act()

        return asyncio.run_coroutine_threadsafe(acted(), self._loop).result(60)

    def wait(self, true: Callable[[], bool]) -> None:
        """Until this is so, seen from the server's thread."""

        async def waited() -> None:
            while not true():
                await asyncio.sleep(0.005)

        asyncio.run_coroutine_threadsafe(waited(), self._loop).result(60)

    def spawn(self, work: Any) -> Any:
        """Start a coroutine there; returns its future."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)


@contextmanager
def rest_server(
    limits: Limits | None = None,
    run: Callable[[Any], None] = uvloop.run,
    cors: bool = False,
    access: Access | None = None,
    tls: Tls | None = None,
    path: str = "",
    regions: Regions | None = None,
) -> Iterator[RestServer]:
    """A front end on a free port of this machine."""
    made = RestServer(limits or Limits(), run, cors, access or Access(), tls, path)
    made.regions = regions
    made.start()
    try:
        yield made
    finally:
        made.close()
