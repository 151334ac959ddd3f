"""HTTP/1.1 itself: framing, order, limits, slow clients and the end of a server."""

import asyncio
import gzip
import json
import re
import socket
import time
import zlib
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from sublet.channel.client_protocol import Answer
from sublet.serving.frontend.peer import Peer
from sublet.serving.frontend.rest import Limits, Server
from sublet.serving.frontend.rest.connection import Connection
from support.numpy_backend import half_plus_two, numpy_backend
from support.rest_server import Client, RestServer, request, rest_server

PREDICT = "/v1/models/half_plus_two:predict"
BODY = b'{"instances": [[1.0]]}'
GOOD = {"predictions": [[2.5]]}
ASK = request("POST", PREDICT, BODY)


def chunked(*pieces: bytes, path: str = PREDICT, end: bytes = b"0\r\n\r\n") -> bytes:
    head = request("POST", path, b"", "Transfer-Encoding: chunked")
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + end


# Connections


def test_a_connection_is_kept_and_closed_as_the_client_asks(served: RestServer) -> None:
    with served.client() as client:
        assert client.ask("POST", PREDICT, BODY).json == GOOD
        last = client.ask("POST", PREDICT, BODY, "Connection: close")
        assert last.json == GOOD
        assert last.headers["connection"] == "close"
        assert client.ended()


def test_a_request_without_a_body_is_the_last_one_too_if_the_client_says_so(
    served: RestServer,
) -> None:
    with served.client() as client:
        last = client.ask("GET", "/healthz", b"", "Connection: Close")
        assert last.headers["connection"] == "close"
        assert client.ended()


def test_a_path_may_be_written_whole_as_for_a_proxy(served: RestServer) -> None:
    with served.client() as client:
        whole = client.ask("POST", f"http://test:8501{PREDICT}", BODY)
        assert whole.json == GOOD
        assert client.ask("GET", "http://test").json == {"status": "alive"}


def test_http_1_0_closes_unless_it_asks_to_stay(served: RestServer) -> None:
    old = ASK.replace(b"HTTP/1.1", b"HTTP/1.0")
    with served.client() as client:
        client.send(old.replace(b"Host: test", b"Connection: keep-alive"))
        kept = client.get()
        assert (kept.json, kept.headers["connection"]) == (GOOD, "keep-alive")
        client.send(old)
        assert client.get().json == GOOD
        assert client.ended()


def test_pipelined_requests_are_answered_in_their_order(served: RestServer) -> None:
    bodies = [json.dumps({"instances": [[x]]}).encode() for x in range(40)]
    with served.client() as client:
        client.send(b"".join(request("POST", PREDICT, body) for body in bodies))
        seen = [client.get().json["predictions"][0][0] for _ in bodies]
    assert seen == [x / 2 + 2 for x in range(40)]


def test_a_late_answer_holds_back_the_ones_behind_it_only(served: RestServer) -> None:
    with served.client() as slow, served.client() as other:
        served.do(lambda: setattr(served.backend, "holding", True))
        slow.send(ASK)
        served.wait(lambda: len(served.backend.held) == 1)
        served.do(lambda: setattr(served.backend, "holding", False))
        slow.send(request("GET", "/healthz"))
        assert other.post(PREDICT, BODY).json == GOOD
        (held,) = served.backend.held
        served.do(lambda: held.set_result(Answer(half_plus_two({"x": _ones()}))))
        assert slow.get().json == GOOD
        assert slow.get().json == {"status": "alive"}
    served.backend.held.clear()


def _ones() -> np.ndarray[Any, Any]:
    return np.ones((1, 1), np.float32)


def test_a_request_may_come_byte_by_byte(served: RestServer) -> None:
    with served.client() as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"\r\n" + ASK:
            client.send(bytes([byte]))
        assert client.get().json == GOOD


def test_head_is_get_without_the_body(served: RestServer) -> None:
    with served.client() as client:
        length = client.ask("GET", "/v1/models/half_plus_two").headers["content-length"]
        bare = client.ask("HEAD", "/v1/models/half_plus_two")
        assert (bare.body, bare.headers["content-length"]) == (b"", length)
        assert client.ask("GET", "/healthz").json == {"status": "alive"}


def test_the_standard_event_loop_will_do_too() -> None:
    with rest_server(run=asyncio.run) as plain, plain.client() as client:
        assert client.post(PREDICT, BODY).json == GOOD
        assert client.ask("POST", PREDICT, BODY, "Connection: close").json == GOOD
        assert client.ended()


def test_every_reply_has_a_date(served: RestServer) -> None:
    with served.client() as client:
        date = client.ask("GET", "/").headers["date"]
    assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", date)


def test_a_unix_socket_is_served_too(served: RestServer, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    served.spawn(served.server.listen([listener])).result(60)
    with Client(path) as client:
        assert client.post(PREDICT, BODY).json == GOOD


# Bodies


@pytest.mark.parametrize("size", [1, 6, 1000])
def test_a_body_may_come_in_chunks(served: RestServer, size: int) -> None:
    pieces = [BODY[at : at + size] for at in range(0, len(BODY), size)]
    with served.client() as client:
        client.send(chunked(*pieces, end=b"0;last=yes\r\nTrailer: dropped\r\n\r\n") + ASK)
        assert client.get().json == GOOD
        assert client.get().json == GOOD


def test_many_tiny_chunks_are_put_together(served: RestServer) -> None:
    numbers = json.dumps({"instances": [float(n) for n in range(5_000)]}).encode()
    pieces = [numbers[at : at + 6] for at in range(0, len(numbers), 6)]
    with served.client() as client:
        client.send(chunked(*pieces, path="/v1/models/floats:predict"))
        assert len(client.get().json["predictions"]) == 5_000


def test_a_client_that_asks_for_leave_to_send_gets_it(served: RestServer) -> None:
    head, _, body = request("POST", PREDICT, BODY, "Expect: 100-continue").partition(b"\r\n\r\n")
    with served.client() as client:
        client.send(head + b"\r\n\r\n")
        assert client.socket.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(body)
        assert client.get().json == GOOD


def test_who_asks_before_it_sends_a_body_behind_a_running_call_is_answered_in_its_turn(
    served: RestServer,
) -> None:
    head, _, body = request("POST", PREDICT, BODY, "Expect: 100-continue").partition(b"\r\n\r\n")
    served.do(lambda: setattr(served.backend, "holding", True))
    with served.client() as client:
        client.send(ASK)
        served.wait(lambda: len(served.backend.held) == 1)
        client.send(head + b"\r\n\r\n")
        served.do(lambda: setattr(served.backend, "holding", False))
        (held,) = served.backend.held
        served.do(lambda: held.set_result(Answer(half_plus_two({"x": _ones()}))))
        assert client.get().json == GOOD
        assert client._file.read(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(body)
        assert client.get().json == GOOD
    served.backend.held.clear()


@pytest.mark.parametrize("asked", [1, 3])
def test_who_ends_its_side_still_gets_its_answers(served: RestServer, asked: int) -> None:
    served.do(lambda: setattr(served.backend, "holding", True))
    with served.client() as client:
        client.send(ASK * asked + ASK[:-1])  # The last one will never be complete.
        served.wait(lambda: len(served.backend.held) == asked)
        client.socket.shutdown(socket.SHUT_WR)
        served.do(lambda: setattr(served.backend, "holding", False))
        for held in served.backend.held:
            served.do(partial(held.set_result, Answer(half_plus_two({"x": _ones()}))))
        assert [client.get().json for _ in range(asked)] == [GOOD] * asked
        assert client.ended()
    served.wait(lambda: not served.server.connections)
    served.backend.held.clear()


@pytest.mark.parametrize("host", ["", "a", "a:80", "[::1]:8501", "127.0.0.1", "a_b.c"])
def test_any_host_is_served(served: RestServer, host: str) -> None:
    with served.client() as client:
        client.send(f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert client.get().status == 200


def test_a_gzip_body_is_unpacked(served: RestServer) -> None:
    with served.client() as client:
        for body in (BODY, BODY + b" " * 200_000):
            # Level 0 packs nothing, so that the second is unpacked in several steps.
            packed = gzip.compress(body, 0)
            assert client.ask("POST", PREDICT, packed, "Content-Encoding: gzip").json == GOOD
            packed = gzip.compress(body[:9]) + gzip.compress(b"") + gzip.compress(body[9:], 0)
            assert client.ask("POST", PREDICT, packed, "Content-Encoding: gzip").json == GOOD


def test_a_large_request_and_its_reply_pass(served: RestServer) -> None:
    body = json.dumps({"instances": [[0.5] * 1000] * 300}).encode()
    with served.client() as client:
        seen = client.post("/v1/models/floats:predict", body)
        assert seen.json == {"predictions": [[0.5] * 1000] * 300}


# What is refused: status, and that the connection ends after the reply

MALFORMED: list[tuple[str, bytes, int]] = [
    ("bare LF", ASK.replace(b"\r\n", b"\n"), 400),
    ("one bare LF", b"GET / HTTP/1.1\r\nHost: a\n\r\n", 400),
    ("garbage", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\r\n\r\n", 400),
    ("TLS, of which nothing ends a line", b"\x16\x03\x01\x00\xa5\x01", 400),
    ("bytes that begin no request", b"\xff\xfe\xfd", 400),
    ("HTTP/0.9", b"GET /\r\n\r\n", 505),
    ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ("unknown method", b"BREW / HTTP/1.1\r\n\r\n", 501),
    ("space in path", b"GET /a b HTTP/1.1\r\n\r\n", 400),
    ("NUL in path", b"GET /\0 HTTP/1.1\r\n\r\n", 400),
    ("raw byte in path", b"GET /v1/models/\xff HTTP/1.1\r\n\r\n", 400),
    ("NUL in header", b"GET / HTTP/1.1\r\nA: \0\r\n\r\n", 400),
    ("CR in header", b"GET / HTTP/1.1\r\nA: b\rc\r\n\r\n", 400),
    ("folded header", b"GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n", 400),
    ("space before colon", b"POST / HTTP/1.1\r\nContent-Length : 3\r\n\r\nabc", 400),
    ("two lengths", b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", 400),
    (
        "two equal lengths",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n",
        400,
    ),
    ("list of lengths", b"POST / HTTP/1.1\r\nContent-Length: 3, 3\r\n\r\n", 400),
    ("signed length", b"POST / HTTP/1.1\r\nContent-Length: +3\r\n\r\n", 400),
    ("hex length", b"POST / HTTP/1.1\r\nContent-Length: 0x3\r\n\r\n", 400),
    ("endless length", b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 400),
    (
        "length and chunks",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    (
        "chunks and length",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        400,
    ),
    ("unknown coding", b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
    ("disguised coding", b"POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n", 400),
    (
        "coding twice",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        400,
    ),
    ("chunks in 1.0", b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ("two hosts", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    ("unknown packing", request("POST", PREDICT, BODY, "Content-Encoding: br"), 415),
    ("unknown expectation", request("POST", PREDICT, BODY, "Expect: tea"), 417),
    ("too many headers", request("GET", "/", b"", *[f"A{n}: b" for n in range(101)]), 431),
    ("headers too large", request("GET", "/", b"", "A: " + "b" * 70_000), 431),
    ("headers without end", b"GET / HTTP/1.1\r\nA: " + b"b" * 70_000, 431),
    ("no chunk size", chunked(end=b"\r\n"), 400),
    ("negative chunk", chunked(end=b"-1\r\n"), 400),
    ("chunk with 0x", chunked(end=b"0x1\r\na\r\n0\r\n\r\n"), 400),
    ("chunk of 2**64", chunked(end=b"FFFFFFFFFFFFFFFFF\r\n"), 400),
    ("chunk of 2**59", chunked(end=b"fffffffffffffff\r\n"), 413),
    ("chunk longer than it says", chunked(end=b"1\r\nabc\r\n0\r\n\r\n"), 400),
    ("chunk line with bare LF", chunked(end=b"1\na\r\n0\r\n\r\n"), 400),
    ("endless extension", chunked(end=b"1;" + b"x" * 1000), 400),
    ("trailer with bare LF", chunked(BODY, end=b"0\r\nA: b\n\r\n"), 400),
    ("endless trailer", chunked(BODY, end=b"0\r\n" + b"A: b\r\n" * 2000), 431),
    ("body too large", request("POST", PREDICT, b"", f"Content-Length: {2**40}"), 413),
    ("no gzip", request("POST", PREDICT, BODY, "Content-Encoding: gzip"), 400),
    (
        "gzip cut off",
        request("POST", PREDICT, gzip.compress(BODY)[:-9], "Content-Encoding: gzip"),
        400,
    ),
    (
        "something behind gzip",
        request("POST", PREDICT, gzip.compress(BODY) + b"more", "Content-Encoding: gzip"),
        400,
    ),
    ("no host", b"GET / HTTP/1.1\r\n\r\n", 400),
    ("two hosts", b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
    ("host with a path", b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
    ("host with a user", b"GET / HTTP/1.1\r\nHost: me@a\r\n\r\n", 400),
    (
        "much behind gzip",
        request("POST", PREDICT, gzip.compress(BODY) + bytes(2**20), "Content-Encoding: gzip"),
        400,
    ),
    (
        "gzip bomb",
        request("POST", PREDICT, gzip.compress(bytes(2**27), 9), "Content-Encoding: gzip"),
        413,
    ),
]


@pytest.mark.parametrize(("what", "raw", "status"), MALFORMED, ids=[each[0] for each in MALFORMED])
def test_what_is_no_good_http_is_refused_and_ends(
    served: RestServer, what: str, raw: bytes, status: int
) -> None:
    with served.client() as client:
        client.send(raw)
        seen = client.get()
        assert seen.status == status, what
        assert set(seen.json) == {"error"}
        assert seen.headers["connection"] == "close"
        assert client.ended()
    with served.client() as client:
        assert client.post(PREDICT, BODY).json == GOOD


def test_nesting_without_end_is_refused(client: Client) -> None:
    for body in (
        b'{"instances": ' + b"[" * 500_000,
        b'{"instances": ' + b"[" * 500_000 + b"]" * 500_000 + b"}",
        b'{"instances": [NaN, ' + b"[" * 500_000 + b"]" * 500_000 + b"]}",
        b'{"a":' * 500_000,
    ):
        seen = client.post(PREDICT, body)
        assert seen.status == 400
        assert seen.json["error"].startswith("JSON Parse error: The document is nested too deeply.")
    seen = client.post("/v1/models/floats:predict", b'{"inputs": ' + b"[" * 200 + b"]" * 200 + b"}")
    assert seen.json == {"error": "A tensor has at most 32 dimensions."}


def test_a_large_broken_document_is_refused_without_a_second_look(client: Client) -> None:
    body = b'{"instances": [' + b"1.5," * 500_000 + b"}"
    seen = client.post(PREDICT, body)
    assert seen.status == 400
    assert seen.json["error"] == f"JSON Parse error: Invalid value. at offset: {len(body) - 1}"


def test_an_error_repeats_only_the_beginning_of_a_large_value(client: Client) -> None:
    seen = client.post(PREDICT, {"instances": {"a": ["x" * 100] * 100_000}})
    assert seen.status == 400
    assert len(seen.body) < 3000


def test_limits_of_bodies_hold_before_and_after_unpacking() -> None:
    with rest_server(Limits(body=1000, chunks=10)) as small:
        too_much = (
            request("POST", PREDICT, b"", "Content-Length: 1001"),
            chunked(b"x" * 500, b"x" * 501),
            chunked(*[b"x"] * 11),
            request("POST", PREDICT, zlib.compress(bytes(1001), 9, 31), "Content-Encoding: gzip"),
        )
        for raw in too_much:
            with small.client() as client:
                client.send(raw)
                assert client.get().status == 413
        with small.client() as client:
            client.send(chunked(BODY))
            assert client.get().json == GOOD


def test_all_bodies_together_are_limited_and_what_ends_makes_room() -> None:
    with rest_server(Limits(bodies=1000)) as small:
        half = request("POST", PREDICT, b"", "Content-Length: 2000")
        with small.client() as first, small.client() as second:
            first.send(half)
            first.send(b" " * 1001)
            small.wait(lambda: small.server.coming == 1001)
            second.send(half)
            second.send(b" ")
            assert second.get().status == 503
        small.wait(lambda: small.server.coming == 0)
        with small.client() as client:
            client.send(chunked(b" " * 500, end=b"no size\r\n"))
            assert client.get().status == 400
        assert small.do(lambda: small.server.coming) == 0
        with small.client() as client:
            client.send(chunked(b" " * 500, BODY))
            assert client.get().json == GOOD
        small.wait(lambda: small.server.coming == 0)


def test_connections_beyond_the_limit_are_told_so() -> None:
    with rest_server(Limits(connections=1)) as small:
        with small.client() as first:
            assert first.post(PREDICT, BODY).json == GOOD
            with small.client() as second:
                assert second.get().status == 503
                assert second.ended()
        small.wait(lambda: not small.server.connections)
        with small.client() as client:
            assert client.post(PREDICT, BODY).json == GOOD


def test_the_refusal_is_heard_by_a_client_that_goes_on_sending(served: RestServer) -> None:
    with served.client() as client:
        client.send(request("POST", PREDICT, b"", f"Content-Length: {2**40}") + b"x" * 100_000)
        assert client.get().status == 413


# Clients that are slow, or gone


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"POST / HT", 408),
        (request("POST", PREDICT, b"", "Content-Length: 10") + b"x", 408),
        (chunked(b"{", end=b""), 408),
        (b"", 0),
        (ASK[:-1], 408),
    ],
)
def test_a_slow_client_is_cut_off(raw: bytes, status: int) -> None:
    idle = 120.0 if raw else 0.05
    with rest_server(Limits(slow=0.05, idle=idle, rate=2**20, sweep=0.02)) as impatient:
        with impatient.client() as client:
            client.send(raw)
            if status:
                assert client.get().status == status
            assert client.ended()
        impatient.wait(lambda: not impatient.server.connections)


def test_a_client_that_never_reads_is_cut_off() -> None:
    with rest_server(Limits(slow=0.05, sweep=0.02)) as impatient, impatient.client() as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps({"instances": [[0.5] * 1000] * 1000}).encode()
        ask = request("POST", "/v1/models/floats:predict", body)
        try:
            for _ in range(20):
                client.send(ask)
        except OSError:
            pass
        impatient.wait(lambda: not impatient.server.connections)


class _Pipe:
    """A transport of which only the amount that was not read yet matters."""

    def __init__(self) -> None:
        self.unread = 10
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unread

    def abort(self) -> None:
        self.aborted = True

    def write(self, data: bytes) -> None:
        pass

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


@pytest.mark.parametrize("last", [False, True])
def test_a_client_that_reads_slowly_but_steadily_is_not_cut_off(last: bool) -> None:
    pipe = _Pipe()
    connection = Connection(Server(numpy_backend(), Limits(slow=10)), Peer())
    connection.connection_made(cast(asyncio.Transport, pipe))
    if last:
        connection.data_received(request("GET", "/", b"", "Connection: close"))
    connection.pause_writing()
    now = time.monotonic()
    for _ in range(9):
        now += 9
        pipe.unread -= 1
        connection.sweep(now)
        assert not pipe.aborted
    connection.sweep(now + 9)
    assert not pipe.aborted
    connection.sweep(now + 11)
    assert pipe.aborted


def test_requests_beyond_the_limit_of_a_connection_wait_their_turn() -> None:
    with rest_server(Limits(pipelined=3)) as narrow, narrow.client() as client:
        narrow.do(lambda: setattr(narrow.backend, "holding", True))
        client.send(ASK * 10)
        held = narrow.backend.held
        for turn in range(10):
            running = min(turn + 3, 10)
            narrow.wait(partial(lambda running: len(held) >= running, running))
            assert len(held) == running
            narrow.do(partial(held[turn].set_result, Answer(half_plus_two({"x": _ones()}))))
            assert client.get().json == GOOD


def test_the_call_of_a_client_that_goes_is_cancelled(served: RestServer) -> None:
    served.do(lambda: setattr(served.backend, "holding", True))
    with served.client() as client:
        client.send(ASK)
        served.wait(lambda: len(served.backend.held) == 1)
    served.wait(lambda: served.backend.held[0].cancelled())
    served.do(lambda: setattr(served.backend, "holding", False))
    served.backend.held.clear()


def test_a_model_that_never_answers_is_given_up() -> None:
    with rest_server(Limits(call=-1.0, sweep=0.02)) as impatient, impatient.client() as client:
        impatient.do(lambda: setattr(impatient.backend, "holding", True))
        seen = client.post(PREDICT, BODY)
        assert seen.status == 504
        impatient.wait(lambda: impatient.backend.held[0].cancelled())


# The end of a server


def test_a_draining_server_finishes_what_runs_and_what_comes_on_open_connections() -> None:
    with rest_server(Limits(linger=60)) as ending, ending.client() as busy, ending.client() as idle:
        assert idle.post(PREDICT, BODY).json == GOOD
        ending.do(lambda: setattr(ending.backend, "holding", True))
        busy.send(ASK)
        ending.wait(lambda: len(ending.backend.held) == 1)
        ending.do(lambda: setattr(ending.backend, "holding", False))
        drained = ending.spawn(ending.server.drain(60))
        ending.wait(lambda: ending.server.draining)
        with pytest.raises(ConnectionRefusedError):
            ending.client()
        last = idle.post(PREDICT, BODY)
        assert (last.json, last.headers["connection"]) == (GOOD, "close")
        assert idle.ended()
        (held,) = ending.backend.held
        ending.do(lambda: held.set_result(Answer(half_plus_two({"x": _ones()}))))
        assert busy.get().json == GOOD
        assert busy.ended()
        busy.close()
        idle.close()
        assert drained.result(60) is True


def test_a_drain_ends_what_takes_longer() -> None:
    with rest_server() as ending, ending.client() as busy:
        ending.do(lambda: setattr(ending.backend, "holding", True))
        busy.send(ASK)
        ending.wait(lambda: len(ending.backend.held) == 1)
        assert ending.spawn(ending.server.drain(0.05)).result(60) is False
        assert not ending.server.connections
        assert busy.ended()
        ending.wait(lambda: ending.backend.held[0].cancelled())


def test_idle_connections_do_not_hold_a_draining_server() -> None:
    with rest_server(Limits(linger=0.05, sweep=0.02)) as ending, ending.client() as idle:
        assert idle.post(PREDICT, BODY).json == GOOD
        assert ending.spawn(ending.server.drain(60)).result(60) is True
        assert idle.ended()


def test_pages_of_other_sites_may_call_only_if_it_is_allowed(client: Client) -> None:
    path = "/v1/models/half_plus_two:predict"
    asked = b'{"instances": [[1.0]]}'
    assert client.ask("OPTIONS", path).status == 400
    assert "access-control-allow-origin" not in client.ask("POST", path, asked).headers
    with rest_server(cors=True) as served, served.client() as allowed:
        before = allowed.ask("OPTIONS", path)
        assert (before.status, before.body) == (200, b"")
        for seen in (before, allowed.ask("POST", path, asked), allowed.ask("GET", "/v2/none")):
            assert seen.headers["access-control-allow-origin"] == "*"
            assert seen.headers["access-control-allow-methods"] == "GET, POST"
            assert seen.headers["access-control-allow-headers"] == "Authorization, Content-Type"
        assert allowed.ask("POST", path, asked).json == {"predictions": [[2.5]]}
