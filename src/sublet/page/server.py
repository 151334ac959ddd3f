"""Serves the page: the socket, the file with its address and token, and the server's life."""

import contextlib
import ipaddress
import json
import os
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn

from sublet.client.connection import connect_or_start
from sublet.errors import WorldError
from sublet.home import Home
from sublet.page.access import Access
from sublet.page.app import make_app

_USUAL_PORT = 8585
_PATIENCE = 5.0
"""Seconds for a server that runs already to answer."""
_LEAVE = 2
"""Seconds in which open pages are let go at the end."""
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""How a server on all addresses is reached from its own machine."""
_IN_THE_CLEAR = (
    "what goes over the network can be read there; through `ssh -L` it cannot, and needs no --host"
)


def serve(home: Home, host: str, port: int | None, say: Callable[[str], None]) -> None:
    """Serve the page until a signal ends it. If this home has a page already, only make a link.

    Without a port: the usual one, or any other if that is taken.
    """
    home.make()
    link = link_of_running(home)
    if link is not None:
        say(f"{link}\nThis link works once. The page was there already; it ends with its server.")
        return
    connect_or_start(home).close()
    listening = _listen(host, port)
    access = Access()
    bound, number = listening.getsockname()[:2]
    config = uvicorn.Config(
        make_app(home, access, ("localhost", socket.gethostname(), host)),
        log_level="critical",
        access_log=False,
        server_header=False,
        http="h11",  # The other parser bounds no header: one without end would keep us busy.
        ws="none",
        timeout_graceful_shutdown=_LEAVE,
        lifespan="on",
    )
    everywhere = bound in _LOOPBACK
    shown = socket.gethostname() if everywhere else host
    with _announced(home, _address(_LOOPBACK.get(bound, bound), number), access.token):
        say(_link(_address(shown, number), access.new_code()))
        say("This link works once. For another: sublet ui, in another terminal. Ctrl-C ends.")
        if everywhere or not ipaddress.ip_address(bound.partition("%")[0]).is_loopback:
            say(f"warning: {_IN_THE_CLEAR}")
        # Uvicorn raises the signal that has ended it once more: we still have to tidy up.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run([listening])


def link_of_running(home: Home) -> str | None:
    """A new link to the page that this home has already; None if it has none."""
    try:
        running = json.loads(_file(home).read_text())
        address, token = running["address"], running["token"]
        request = urllib.request.Request(
            f"{address}/links", method="POST", headers={"Authorization": f"Bearer {token}"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_PATIENCE) as answer:
            return _link(address, json.load(answer)["code"])
    except (OSError, ValueError, KeyError, TypeError, urllib.error.URLError):
        return None  # Nobody is there any more, or it is somebody else's port by now.


@contextlib.contextmanager
def _announced(home: Home, address: str, token: str) -> Iterator[None]:
    """Say in a file that only the user can read where the page is, and its token."""
    path = _file(home)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(draft, flags, 0o600), "w", encoding="utf-8") as file:
        json.dump({"address": address, "token": token}, file)
    draft.replace(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError, KeyError):
            if json.loads(path.read_text())["token"] == token:
                path.unlink()


def _file(home: Home) -> Path:
    return home.path / "page.json"


def _listen(host: str, port: int | None) -> socket.socket:
    last = OSError()
    for number in (_USUAL_PORT, 0) if port is None else (port,):
        try:
            family = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, number), family=family)
        except OSError as error:
            last = error
    where = host if port is None else f"{host}, port {port}"
    named = isinstance(last, socket.gaierror) or last.errno is None
    why = str(last.strerror) if named else os.strerror(last.errno or 0)
    raise WorldError(
        f"The page cannot listen on {where}: {why}.",
        "Name an address of this machine; --port 0 takes any port that is free.",
    ) from last


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _link(address: str, code: str) -> str:
    return f"{address}/enter?code={code}"
