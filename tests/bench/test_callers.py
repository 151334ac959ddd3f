"""Promises of the load client, with real sockets and real gRPC servers."""

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import pytest

from bench import callers, processes, servers, wire

ROW = (0.5, 1.0, -2.0)


class _Echo(BaseHTTPRequestHandler):
    """Answers a predict request with its own rows; `refused` with 503."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = json.dumps({"predictions": json.loads(body)["instances"]}).encode()
        self.send_response(503 if "refused" in self.path else 200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


@pytest.fixture(scope="module")
def http() -> Iterator[int]:
    """The port of a real HTTP server."""
    with _Http(("127.0.0.1", 0), _Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def _predict(request: bytes, context: grpc.ServicerContext) -> bytes:
    if b"refused" in request:
        context.abort(grpc.StatusCode.UNAVAILABLE, "full")
    return request


@pytest.fixture(scope="module")
def grpcs() -> Iterator[int]:
    """The port of a real gRPC server that answers with the request."""
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", -1)])
    handlers = {"Predict": grpc.unary_unary_rpc_method_handler(_predict)}
    service = "tensorflow.serving.PredictionService"
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None).wait()


def _brief(load: callers.Load, **changes: Any) -> callers.Load:
    return callers.Load(**{**vars(load), "connections": 3, "warm": 0.0, "seconds": 2.0, **changes})


def test_a_closed_loop_over_http_counts_every_answer(http: int) -> None:
    """And brings one of them along."""
    heard = callers.call(_brief(servers.predict_load(http, ["m"], ROW)))
    assert heard.answered > 3
    assert (heard.refused, heard.late) == (0, 0)
    assert json.loads(heard.body) == {"predictions": [list(ROW)]}
    assert 0 < heard.p50 <= heard.p99 <= heard.most


def test_a_refusal_is_counted_apart_and_by_its_status(http: int) -> None:
    """One model of two refuses."""
    heard = callers.call(_brief(servers.predict_load(http, ["m", "refused"], ROW)))
    assert heard.answered
    assert heard.statuses == {"503": heard.refused}
    assert heard.refused_p99 > 0


def test_an_open_loop_sends_what_is_due_whether_answers_come_or_not(http: int) -> None:
    """About a hundred in two tenths of a second; the times are drawn, always the same."""
    load = _brief(servers.predict_load(http, ["m"], ROW), seconds=0.2, rate=500.0)
    first, again = callers.call(load), callers.call(load)
    assert first.answered == again.answered
    assert 60 < first.answered < 140


@pytest.mark.slow
def test_a_closed_loop_over_grpc_speaks_to_a_real_server(grpcs: int) -> None:
    """Its messages come back whole."""
    heard = callers.call(_brief(servers.predict_call(grpcs, ["m"], ROW)))
    assert heard.answered > 3
    assert heard.refused == 0
    assert heard.body == wire.predict_message("m", "x", (1, 3), wire.floats(ROW))


@pytest.mark.slow
def test_a_grpc_call_that_fails_is_a_refusal(grpcs: int) -> None:
    """It ends without a message."""
    heard = callers.call(_brief(servers.predict_call(grpcs, ["refused"], ROW)))
    assert heard.answered == 0
    assert heard.refused > 3


def test_a_message_larger_than_every_window_arrives(grpcs: int) -> None:
    """Flow control in both directions."""
    load = servers.predict_call(grpcs, ["m"], [1.0] * 2_000_000)
    assert callers.ask(load, timeout=60) == load.requests[0][5:]


def test_a_server_that_hangs_up_is_no_figure() -> None:
    """Better none than a wrong one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closer = threading.Thread(target=lambda: listener.accept()[0].close())
        closer.start()
        load = servers.predict_load(listener.getsockname()[1], ["m"], ROW)
        with pytest.raises(processes.Failed, match="closed a connection"):
            callers.call(_brief(load, connections=1))
        closer.join()


def test_values_are_found_wherever_they_stand_in_an_answer() -> None:
    """Rounded differently, but never others."""
    message = b"\x0a\x07" + wire.floats((0.50001, 1.0, -2.0)) + b"\x12"
    assert wire.holds(message, ROW)
    assert not wire.holds(message, (0.5, 1.0, 2.0))
