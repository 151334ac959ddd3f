"""The page's server in a thread of the test, on a home without a broker."""

import http.client
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import uvicorn

from sublet.home import Home
from sublet.page.access import Access
from sublet.page.app import make_app


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class PageServer:
    """A server, and requests to it byte for byte as the test says."""

    def __init__(self, root: Path) -> None:
        self.home = Home(root)
        self.home.make()
        self.access = Access()
        self.app = make_app(self.home, self.access, ("localhost",))
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.origin = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(
            self.app, log_level="critical", ws="none", http="h11", lifespan="on"
        )
        config.timeout_graceful_shutdown = 1
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))
        self._thread.start()
        self.session = self.access.redeem(self.access.new_code()) or ""

    @property
    def cookie(self) -> dict[str, str]:
        """The header of who is signed in."""
        return {"Cookie": f"other=1; {self.access.cookie}={self.session}"}

    @property
    def token(self) -> dict[str, str]:
        """The header of a program of the user's."""
        return {"Authorization": f"Bearer {self.access.token}"}

    def ask(self, method: str, path: str, headers: Mapping[str, str] = {}) -> Answer:
        """The answer to a request; of a stream that does not end, the head only."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, headers=dict(headers))
            answer = connection.getresponse()
            endless = answer.headers.get_content_type() == "text/event-stream"
            body = b"" if endless else answer.read()
            return Answer(answer.status, dict(answer.headers.items()), body)
        finally:
            connection.close()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("page") / "home"
        patch.setenv("SUBLET_HOME", str(root))
        made = PageServer(root)
        yield made
        made.close()
