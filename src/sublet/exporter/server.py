"""A small HTTP server that reads the broker once for each scrape.

On a loopback address it answers who names this machine as the host, so that no web page can read it
under a name of its own. On any other address it answers who has the token.
"""

import contextlib
import ipaddress
import socket
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sublet.errors import BadRequest, SubletError, WorldError
from sublet.serving.access import Access, Right

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MOST_AT_ONCE = 16
_IDLE = 10.0
"""Seconds after which a client that says nothing is hung up on."""
_HERE = ("localhost", "127.0.0.1", "[::1]")
_EXAMPLE = "Write HOST:PORT, such as 127.0.0.1:9400 or [::1]:9400."


def parse_address(text: str) -> tuple[str, int]:
    """The host and the port in `127.0.0.1:9400`, `[::1]:9400` or `:9400`."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in bare and bare == host):
        raise BadRequest(f"--listen {text!r} is not an address.", _EXAMPLE)
    return bare or "127.0.0.1", int(port)


class MetricsServer(ThreadingHTTPServer):
    """Listens from the start; `serve_forever` answers. `read` makes the text of one scrape."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self, host: str, port: int, read: Callable[[], str], tokens: tuple[bytes, ...] = ()
    ) -> None:
        self.read = read
        self.access = Access(callers=tokens)
        self._room = threading.Semaphore(_MOST_AT_ONCE)
        try:
            facts = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            self.address_family, address = facts[0][0], facts[0][4]
            self.public = not ipaddress.ip_address(address[0]).is_loopback
            if self.public and not tokens:
                raise BadRequest(
                    f"--listen {host}:{port}: other machines could read the metrics.",
                    "Listen on 127.0.0.1, or name a file with a token: --token-file FILE.",
                )
            # Host and port in both families; to the checker, the host may be a number.
            super().__init__(address[:2], _Handler)  # type: ignore[arg-type]
        except OSError as error:
            why = error.strerror or str(error)
            raise WorldError(f"--listen {host}:{port}: {why}.", "Choose another port.") from None

    @property
    def url(self) -> str:
        """Where the metrics are."""
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if self.address_family == socket.AF_INET6 else str(host)
        return f"http://{shown}:{port}/metrics"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own; beyond a bound, hang up."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up, or says nothing, is no error of ours."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    server: MetricsServer
    timeout = _IDLE
    server_version = "sublet"
    sys_version = ""
    protocol_version = "HTTP/1.1"

    def handle_one_request(self) -> None:
        """Answer GET and HEAD; refuse all other methods, whatever they are."""
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline:
            self.close_connection = True
        elif len(self.raw_requestline) > 65536:
            self.requestline = self.request_version = self.command = ""
            self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
        elif self.parse_request():
            self._answer()
            self.wfile.flush()

    def _answer(self) -> None:
        if self.headers.get("content-length") or self.headers.get("transfer-encoding"):
            self.close_connection = True  # The body is not read.
        if not self.server.access.callers and not self._names_us():
            self._say(HTTPStatus.FORBIDDEN, "This server is for this machine: name it 127.0.0.1.")
            return
        authorization = self.headers.get("authorization", "").encode("latin-1", "replace")
        refusal = self.server.access.refusal(Right.CALL, False, authorization)
        if refusal is not None:
            self._say(HTTPStatus.UNAUTHORIZED, str(refusal), {"WWW-Authenticate": "Bearer"})
        elif self.command not in ("GET", "HEAD"):
            self._say(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET is answered.", {"Allow": "GET"})
        elif self.path.partition("?")[0] != "/metrics":
            self._say(HTTPStatus.NOT_FOUND, "The metrics are at /metrics.")
        else:
            self._scrape()

    def _scrape(self) -> None:
        try:
            text = self.server.read()
        except (SubletError, OSError) as error:
            self._say(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
            return
        self._say(HTTPStatus.OK, text, {"Content-Type": CONTENT_TYPE})

    def _names_us(self) -> bool:
        """Whether the request is for this machine, and from no web page of elsewhere."""
        host = self.headers.get("host", "")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        return name.lower() in _HERE and "origin" not in self.headers

    def _say(self, status: HTTPStatus, text: str, more: dict[str, str] | None = None) -> None:
        body = (text if text.endswith("\n") else f"{text}\n").encode()
        head = {"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"}
        self.send_response(status)
        for name, value in (head | (more or {})).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not logged."""
