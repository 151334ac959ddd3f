"""Nobody gets past the gate who should not: every route, every method, every way to ask."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.routing import BaseRoute, Mount, Route

from page.conftest import PageServer
from sublet.page.access import Access

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
BASE = "BASE/"
ROUTES = {
    # Each path, with something in the place of what varies, and what its methods answer.
    "/enter": {"GET": 401, "HEAD": 200},
    "/links": {},
    BASE: {"GET": 200, "HEAD": 200},
    f"{BASE}main.js": {"GET": 200, "HEAD": 200},
    f"{BASE}api/history": {"GET": 200, "HEAD": 200},
    f"{BASE}api/live": {"GET": 200, "HEAD": 200},
    f"{BASE}api/models": {"GET": 200, "HEAD": 200},
    f"{BASE}api/models/history": {"GET": 200, "HEAD": 200},
    f"{BASE}api/sweeps": {"GET": 200, "HEAD": 200},
    f"{BASE}api/sweeps/20260101-1": {"GET": 400, "HEAD": 400},
    f"{BASE}api/jobs/1": {"GET": 503, "HEAD": 503},
    f"{BASE}api/jobs/1/log": {"GET": 200, "HEAD": 200},
    f"{BASE}api/jobs/1/scalars": {"GET": 503, "HEAD": 503},
    f"{BASE}api/jobs/1/cancel": {"POST": 503},
    f"{BASE}api/jobs/1/pause": {"POST": 503},
    f"{BASE}api/jobs/1/resume": {"POST": 503},
}
"""What is answered to who is signed in; all methods that are not here are refused. There is no
broker, so what asks one gets 503; a link without its code gets 401."""


def patterns(routes: list[BaseRoute], before: str = "") -> Iterator[str]:
    """The paths of all routes, as regular expressions."""
    for route in routes:
        if isinstance(route, Mount) and route.routes:
            yield from patterns(list(route.routes), before + route.path)
        elif isinstance(route, Mount):
            yield f"{re.escape(before + route.path)}/.*"
        else:
            assert isinstance(route, Route)
            yield re.escape(before) + route.path_regex.pattern.removeprefix("^").removesuffix("$")


def paths(server: PageServer) -> dict[str, dict[str, int]]:
    """The table, below the path that this server has."""
    return {path.replace(BASE, server.access.base): kinds for path, kinds in ROUTES.items()}


def all_paths(server: PageServer) -> list[str]:
    base = server.access.base
    return [*paths(server), "/", "/nothing", f"{base}nothing", f"{base}api/../api/live"]


def test_the_table_has_every_route_and_nothing_else(server: PageServer) -> None:
    """A route that is added without a line in the table fails here."""
    found = list(patterns(server.app.routes))
    for pattern in found:
        assert any(re.fullmatch(pattern, path) for path in paths(server)), pattern
    for path in paths(server):
        assert any(re.fullmatch(pattern, path) for pattern in found), path


@pytest.mark.parametrize("method", METHODS)
def test_who_is_signed_in_gets_what_the_table_says(server: PageServer, method: str) -> None:
    for path, kinds in paths(server).items():
        answer = server.ask(method, path, {**server.cookie, "Origin": server.origin})
        if path == "/links" or (path == "/enter" and method not in ("GET", "HEAD")):
            expected = {401, 405}  # A session makes no links, and a link is only followed.
        else:
            expected = {kinds[method]} if method in kinds else {404, 405}
        assert answer.status in expected, (path, answer)
    assert not Path(server.home.socket).exists(), "a request has started a broker"


def wrong_credentials(server: PageServer) -> list[dict[str, str]]:
    """Ways to ask without being signed in."""
    other = Access()
    name = server.access.cookie
    return [
        {},
        {"Cookie": f"{name}="},
        {"Cookie": f"{name}={other.redeem(other.new_code())}"},
        {"Cookie": f"{name}={server.access.token}"},
        {"Cookie": f"{name}={server.session[:-1]}"},
        {"Cookie": f'{name}="; {name}2={server.session}'},
        {"Cookie": f"x={'y' * 9000}; {name}={server.session}"},
        {"Cookie": f"session={server.session}"},
        {"Authorization": f"Bearer {other.token}"},
        {"Authorization": f"Bearer {server.session}"},
        {"Authorization": f"Basic {server.access.token}"},
        {"Authorization": "Bearer "},
        {"X-Token": server.access.token},
        {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"},
    ]


@pytest.mark.parametrize("method", METHODS)
def test_who_is_not_signed_in_gets_nothing_from_any_route(server: PageServer, method: str) -> None:
    for path in all_paths(server):
        for headers in wrong_credentials(server):
            answer = server.ask(method, path, headers)
            if path == "/enter" and method == "HEAD":
                assert (answer.status, answer.body) == (200, b"")
            else:
                assert answer.status == 401, (path, headers)
            assert "Set-Cookie" not in answer.headers
            assert server.access.base.encode() not in answer.body


def test_secrets_in_an_address_count_for_nothing(server: PageServer) -> None:
    for name in ("token", "session", "code", "access_token", server.access.cookie):
        for value in (server.access.token, server.session):
            assert server.ask("GET", f"{server.access.base}?{name}={value}").status == 401
    assert server.ask("GET", f"/enter?code={server.access.token}").status == 401


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://elsewhere.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://localhost"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_another_site_gets_nothing_even_for_who_is_signed_in(
    server: PageServer, method: str, headers: dict[str, str]
) -> None:
    for path in all_paths(server):
        if path == "/enter" and method in ("GET", "HEAD"):
            continue  # A link may be followed from anywhere; it needs its code.
        for credentials in (server.cookie, server.token):
            assert server.ask(method, path, {**headers, **credentials}).status == 403, path


@pytest.mark.parametrize(
    "host", ["elsewhere.example", "elsewhere.example:80", "", "127.0.0.1.elsewhere.example"]
)
def test_a_name_that_is_not_ours_gets_nothing(server: PageServer, host: str) -> None:
    """So a page of somebody else's whose name leads here cannot ask in its user's name."""
    for path in all_paths(server):
        for credentials in ({}, server.cookie, server.token):
            answer = server.ask("GET", path, {"Host": host, **credentials})
            assert answer.status in (400, 421), path


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost:9000", "LOCALHOST", "[::1]:80", "10.0.0.7"]
)
def test_addresses_and_localhost_are_ours_on_any_port(server: PageServer, host: str) -> None:
    """The port is another one through a tunnel."""
    assert server.ask("GET", server.access.base, {"Host": host, **server.cookie}).status == 200


def test_a_cookie_alone_changes_nothing(server: PageServer) -> None:
    """A browser says which page has asked whenever something is to be changed."""
    path = f"{server.access.base}api/jobs/1/cancel"
    assert server.ask("POST", path, server.cookie).status == 403


def test_every_answer_says_what_a_browser_may_do_with_it(server: PageServer) -> None:
    asked = [
        server.ask("GET", path, headers)
        for path in all_paths(server)
        for headers in ({}, server.cookie, {"Host": "elsewhere.example"})
    ]
    for answer in asked:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"


def test_a_link_works_once_and_leaves_no_secret_in_the_address(server: PageServer) -> None:
    code = server.access.new_code()
    foreign = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert server.ask("HEAD", f"/enter?code={code}").status == 200
    answer = server.ask("GET", f"/enter?code={code}", foreign)
    assert answer.status == 303
    assert answer.headers["location"] == server.access.base
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert f"Path={server.access.base}" in cookie
    session = cookie.partition(";")[0]
    assert server.ask("GET", server.access.base, {"Cookie": session}).status == 200
    assert server.ask("GET", f"/enter?code={code}").status == 401


def test_only_the_token_makes_new_links(server: PageServer) -> None:
    assert server.ask("POST", "/links", server.cookie).status == 401
    answer = server.ask("POST", "/links", server.token)
    assert answer.status == 200
    code = answer.body.decode().split('"')[3]
    assert server.ask("GET", f"/enter?code={code}").status == 303


def test_files_beside_the_page_are_out_of_reach(server: PageServer) -> None:
    base = server.access.base
    for path in ("../access.py", "%2e%2e/access.py", "..%2faccess.py", "/etc/passwd", "%00"):
        answer = server.ask("GET", base + path, server.cookie)
        assert answer.status in (400, 404)


def test_numbers_that_cannot_be_are_refused(server: PageServer) -> None:
    base = f"{server.access.base}api/"
    for path in (
        "history?since=x",
        "history?since=-1",
        "history?since=nan",
        "history?since=1e300",
        "jobs/1/log?attempt=-1",
        "jobs/1/log?attempt=1&from=" + "9" * 30,
        "jobs/1/log?attempt=..%2f..%2fetc",
        "jobs/1/log?stream=..%2fx",
        "jobs/" + "9" * 40,
    ):
        answer = server.ask("GET", base + path, server.cookie)
        assert answer.status in (400, 404), path
    headers = {**server.cookie, "Origin": server.origin}
    assert server.ask("POST", base + "jobs/1/retry", headers).status == 404


def test_a_header_without_end_is_cut_off(server: PageServer) -> None:
    """Other users of the machine reach the port, and must not keep the server busy."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        with pytest.raises(ConnectionError):
            connection.sendall(b"a" * 100_000_000)
