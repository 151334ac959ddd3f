"""The metrics over real HTTP: who is answered, and what."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from sublet.errors import BadRequest, WorldError
from sublet.exporter.server import CONTENT_TYPE, MetricsServer, parse_address
from sublet.serving.access import digests

TOKEN = "a-token-of-more-than-16-letters"
GOOD = {"Authorization": f"Bearer {TOKEN}"}
NewServer = Callable[..., MetricsServer]


@pytest.fixture
def new_server() -> Iterator[NewServer]:
    """Servers that end with the test."""
    with ExitStack() as made:

        def make(*tokens: str, read: Callable[[], str] = lambda: "a 1\n") -> MetricsServer:
            known = digests([token.encode() for token in tokens])
            server = made.enter_context(MetricsServer("127.0.0.1", 0, read, known))
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            made.callback(thread.join)
            made.callback(server.shutdown)
            return server

        yield make


def ask(
    server: MetricsServer, method: str, path: str, headers: dict[str, str]
) -> tuple[int, dict[str, str], bytes]:
    port = int(server.server_address[1])
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as client:
        client.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            client.putheader(name, value)
        client.endheaders()
        answer = client.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()


METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "HACK"]


PATHS = {
    "/metrics": True,
    "/metrics?x=1": True,
    "/": False,
    "/other": False,
    "/metrics/../a": False,
}


@pytest.mark.parametrize("tokens", [(), (TOKEN,)])
@pytest.mark.parametrize(
    ("headers", "is_local"),
    [
        ({}, True),
        (GOOD, True),
        ({"Authorization": "Bearer a-wrong-token-that-is-long"}, True),
        ({"Authorization": TOKEN}, True),
        ({"Host": "evil.example"}, False),
        ({"Host": "localhost:1"}, True),
        ({"Host": "[::1]:1"}, True),
        ({"Origin": "https://evil.example"}, False),
        (GOOD | {"Host": "gpu-box.example:9400", "Origin": "https://evil.example"}, False),
    ],
)
def test_who_is_answered(
    new_server: NewServer, tokens: tuple[str, ...], headers: dict[str, str], is_local: bool
) -> None:
    """Every path and method, without a token and with a right or a wrong one, from here and from
    elsewhere."""
    server = new_server(*tokens)
    has_token = headers.get("Authorization") == GOOD["Authorization"]
    refused = (0 if has_token else 401) if tokens else (0 if is_local else 403)
    for path, known in PATHS.items():
        for method in METHODS:
            status, _, body = ask(server, method, path, headers)
            answered = 405 if method not in ("GET", "HEAD") else 200 if known else 404
            assert status == (refused or answered), (method, path)
            assert (body == b"a 1\n") == (status == 200 and method == "GET")


def test_the_text_is_prometheus_own_and_not_kept(new_server: NewServer) -> None:
    _, headers, _ = ask(new_server(), "GET", "/metrics", {})
    assert headers["Content-Type"] == CONTENT_TYPE
    assert headers["Cache-Control"] == "no-store"


def test_a_broker_that_does_not_answer_is_a_failed_scrape(new_server: NewServer) -> None:
    def read() -> str:
        raise WorldError("The broker has not answered for 5 s.")

    status, _, body = ask(new_server(read=read), "GET", "/metrics", {})
    assert (status, body) == (503, b"The broker has not answered for 5 s.\n")


def test_other_machines_need_a_token() -> None:
    with pytest.raises(BadRequest, match="other machines"):
        MetricsServer("0.0.0.0", 0, str)
    with MetricsServer("0.0.0.0", 0, str, digests([TOKEN.encode()])) as server:
        assert server.public


def test_a_port_that_is_taken_is_said(new_server: NewServer) -> None:
    port = int(new_server().server_address[1])
    with pytest.raises(WorldError, match="in use"):
        MetricsServer("127.0.0.1", port, str)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9400", ("127.0.0.1", 9400)),
        (":9400", ("127.0.0.1", 9400)),
        ("[::1]:9400", ("::1", 9400)),
        ("gpu-box:1", ("gpu-box", 1)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "9400", "a:", "a:b", "::1:9400", "a:70000", "a:-1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(BadRequest, match="not an address"):
        parse_address(text)
