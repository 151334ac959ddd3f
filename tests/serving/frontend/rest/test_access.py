"""REST with tokens and certificates: who is let in, and what is open to all."""

import contextlib
import socket
import ssl
from hashlib import sha256
from pathlib import Path

import pytest

from sublet.serving.access import Access
from sublet.serving.frontend.limits import Limits
from sublet.serving.tls import Tls
from support.certificates import make_pair, needs_openssl
from support.rest_server import Client, request, rest_server
from support.strangers import as_stranger, needs_root

TOKEN = "caller-0123456789"
ACCESS = Access(callers=(sha256(TOKEN.encode()).digest(),))
BEARER = f"Authorization: Bearer {TOKEN}"
PREDICT = "/v1/models/floats:predict"
ASKED = b'{"instances": [1.0]}'


def test_calls_need_the_token_and_health_does_not() -> None:
    with rest_server(access=ACCESS) as served:
        for path in ("/", "/healthz", "/v2/health/live", "/v2/health/ready"):
            with served.client() as client:
                assert client.ask("GET", path).status == 200
        with served.client() as client:
            assert client.ask("POST", PREDICT, ASKED, BEARER).status == 200
            assert client.ask("GET", "/v1/models/floats", b"", BEARER).status == 200
        for method, path in (
            ("POST", PREDICT),
            ("GET", "/v1/models/floats"),
            ("GET", "/v2/models/floats"),
            ("POST", "/v2/repository/index"),
            ("GET", "/monitoring/prometheus/metrics"),
            ("POST", "/healthz"),
            ("GET", "/nothing"),
        ):
            for more in ((), (f"{BEARER}x",), ("Authorization: Basic eDp5",)):
                with served.client() as client:
                    seen = client.ask(method, path, ASKED if method == "POST" else b"", *more)
                    assert (seen.status, seen.headers["www-authenticate"]) == (401, "Bearer")
                    assert "authorization: Bearer TOKEN" in seen.json["error"]
                    assert client.ended()


def test_who_has_no_token_is_refused_before_its_body_is_taken() -> None:
    with rest_server(access=ACCESS) as served, served.client() as client:
        client.send(request("POST", PREDICT, b"", "Content-Length: 100000000"))
        assert client.get().status == 401
        assert client.ended()
        assert not served.do(lambda: served.server.coming)


def test_two_tokens_are_no_token() -> None:
    with rest_server(access=ACCESS) as served, served.client() as client:
        assert client.ask("POST", PREDICT, ASKED, BEARER, BEARER).status == 400


def test_a_browser_may_ask_whether_it_may_ask() -> None:
    with rest_server(access=ACCESS, cors=True) as served, served.client() as client:
        seen = client.ask("OPTIONS", PREDICT)
        assert seen.status == 200
        assert "Authorization" in seen.headers["access-control-allow-headers"]
        assert client.ask("POST", PREDICT, ASKED).status == 401


@needs_root
def test_only_the_servers_own_user_needs_no_token_on_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "rest.sock")
    with rest_server(access=ACCESS, path=path) as served:
        with Client(served.path) as client:
            assert client.ask("POST", PREDICT, ASKED).status == 200
        (tmp_path / "rest.sock").chmod(0o777)
        for folder in (tmp_path, *tmp_path.parents):
            folder.chmod(folder.stat().st_mode | 0o111)

        def ask() -> list[int]:
            codes = []
            for more in ((), (BEARER,)):
                with Client(path) as client:
                    codes.append(client.ask("POST", PREDICT, ASKED, *more).status)
            return codes

        assert as_stranger(ask) == [401, 200]


@needs_openssl
@pytest.mark.parametrize("asks", [False, True])
def test_tls_takes_only_clients_with_a_certificate_if_it_asks_for_one(
    tmp_path: Path, asks: bool
) -> None:
    ours, theirs = make_pair(tmp_path, "server"), make_pair(tmp_path, "client")
    tls = Tls(*ours, custom_ca=theirs.certificate, client_verify=asks)

    def ask(shows: bool) -> bytes:
        context = ssl.create_default_context(cadata=ours.certificate)
        context.set_alpn_protocols(["http/1.1"])
        if shows:
            context.load_cert_chain(tmp_path / "client.pem", tmp_path / "client.key")
        with (
            socket.create_connection(served.where, 60) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as sock,
        ):
            assert sock.selected_alpn_protocol() == "http/1.1"
            sock.sendall(request("POST", PREDICT, ASKED, "Connection: close"))
            said = b""
            # Who shows no certificate hears of it only when it reads, or nothing at all.
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                while piece := sock.recv(4096):
                    said += piece
        return said

    with rest_server(tls=tls) as served:
        assert ask(shows=True).startswith(b"HTTP/1.1 200")
        assert ask(shows=False).startswith(b"HTTP/1.1 200") != asks
        with served.client() as client:
            client.send(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
            assert client.ended()
        served.wait(lambda: not served.server.connections)


@needs_openssl
def test_a_client_that_never_begins_tls_is_cut_off(tmp_path: Path) -> None:
    tls = Tls(*make_pair(tmp_path, "server"))
    with rest_server(Limits(slow=0.1, sweep=0.05), tls=tls) as served, served.client() as client:
        assert client.ended()


def test_loading_and_unloading_need_a_token_of_their_own() -> None:
    admin = "admin-0123456789"
    access = Access(reloaders=(sha256(admin.encode()).digest(),), reload=True)
    path = "/v2/repository/models/floats/"
    with rest_server(access=access) as served:
        # Calls are open to all here, and changes are not.
        for word in ("load", "unload", "unload/", "load?x=y"):
            for more in ((), (BEARER,)):
                with served.client() as client:
                    assert client.ask("POST", path + word, b"{}", *more).status == 401
        with served.client() as client:
            assert client.ask("POST", PREDICT, ASKED).status == 200
            assert not served.do(lambda: served.backend.changed)
            allowed = f"Authorization: Bearer {admin}"
            assert client.ask("POST", path + "unload", b"{}", allowed).status == 200
            assert client.ask("POST", path + "load", b"", allowed).status == 200
            files = b'{"parameters": {"file:1/model": "AA=="}}'
            assert client.ask("POST", path + "load", files, allowed).status == 501
        assert served.do(lambda: served.backend.changed) == [("floats", False), ("floats", True)]
