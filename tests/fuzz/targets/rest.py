"""A connection of the REST front end, in front of models without engines."""

import gzip
import json
from typing import Any, cast

import httptools

from fuzz.driver import Random, Target
from fuzz.pipes import Pipe, Stage, pieces, settle
from sublet.serving.frontend.peer import Peer
from sublet.serving.frontend.rest import Limits, Server
from sublet.serving.frontend.rest.connection import Connection
from support.numpy_backend import numpy_backend
from support.rest_server import request

PREDICT = "/v1/models/floats:predict"
_ASKED = b'{"instances": [1.0, 2.5]}'
_INFER = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}'
_RAW = "Inference-Header-Content-Length: 77"
_CHUNKED = b'5\r\n{"ins\r\n0\r\n\r\n'
_LOOK = "/v1/models/floats/metadata"
SEEDS = (
    request("POST", PREDICT, _ASKED),
    request("POST", PREDICT, _ASKED) * 3,
    request("GET", _LOOK, b"", "Authorization: Bearer x", "Connection: close"),
    request("POST", "/v2/models/floats/infer", _INFER + bytes(8), _RAW),
    request("POST", PREDICT, gzip.compress(_ASKED), "Content-Encoding: gzip"),
    request("POST", PREDICT, b"", "Transfer-Encoding: chunked") + _CHUNKED,
    request("POST", PREDICT, b"", "Expect: 100-continue", "Content-Length: 25"),
    request("OPTIONS", PREDICT) + request("HEAD", "/healthz"),
    b"GET / HTTP/1.0\r\n\r\n",
)
_WORDS = ("instances", "inputs", "examples", "signature_name", "b64", "name", "shape", "data", "t")
_NUMBERS = (0, -1, 1.5, 2**31, 2**63, 1e300, 1e-320, True, None, "", "x", "\ud800")


def target() -> Target:
    stage = Stage()
    limits = Limits(head=4096, headers=20, body=8192, bodies=65536, chunks=50)

    async def rest_server() -> Server:
        return Server(numpy_backend(), limits)

    server = stage.run(rest_server)

    async def feed(data: bytes) -> None:
        pipe = Pipe()
        connection = Connection(server, Peer())
        connection.connection_made(cast(Any, pipe))
        for piece in pieces(data):
            connection.data_received(piece)
            await settle()
        connection.sweep(1e12)
        connection.connection_lost(None)
        await settle()
        assert server.coming == 0
        assert not server.connections
        assert b"HTTP/1.1 500" not in pipe.written
        # Replies to HEAD have a length and no body: only their client knows where they end.
        if b"HEAD" not in data:
            _check(bytes(pipe.written))

    def close() -> None:
        stage.close()

    return Target(lambda data: stage.run(lambda: feed(data)), SEEDS, make, close)


def make(chance: Random) -> bytes:
    """A whole request with a document that may be anything."""
    body = json.dumps(_document(chance, 4)).encode()
    path = chance.choice(
        (PREDICT, "/v1/models/ints:predict", "/v1/models/half_plus_two:regress",
         "/v1/models/texts:predict", "/v2/models/mixed/infer", "/v1/models/%2e%2e:predict")
    )  # fmt: skip
    return request(chance.choice(("POST", "GET", "PUT")), path, body)


def _document(chance: Random, depth: int) -> Any:
    match chance.randrange(3 if depth else 1):
        case 0:
            return chance.choice(_NUMBERS)
        case 1:
            return [_document(chance, depth - 1) for _ in range(chance.randrange(4))]
    return {chance.choice(_WORDS): _document(chance, depth - 1) for _ in range(chance.randrange(4))}


class _Replies:
    """What httptools calls while it reads."""

    def __init__(self) -> None:
        self.body = b""
        self.parser: Any = httptools.HttpResponseParser(self)

    def on_message_begin(self) -> None:
        self.body = b""

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        status = self.parser.get_status_code()
        assert status in (100, 200, *range(400, 500), 501, 503, 504, 505), status
        if status >= 400 and self.body:
            assert json.loads(self.body).keys() == {"error"}


def _check(written: bytes) -> None:
    """Whatever was answered is HTTP, with JSON in it, and not our fault."""
    replies = _Replies()
    try:
        replies.parser.feed_data(written)
    except httptools.HttpParserCallbackError as wrong:
        raise wrong.__context__ or wrong from None
