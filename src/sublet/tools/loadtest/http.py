"""A server of any make over TensorFlow Serving's REST API, as a transport.

Requests are bytes that were made before, so that the server is measured and not an encoder. Each
call has a connection to itself, which is used again.
"""

import asyncio
import base64
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any, cast
from urllib.parse import quote, urlsplit

import httptools
import numpy as np
from google.protobuf import json_format

from sublet.channel.client_protocol import Answer
from sublet.channel.codes import Code
from sublet.channel.tensors import Array
from sublet.engine.savedmodel_proto import Signature
from sublet.engine.signatures import DEFAULT, batchable
from sublet.errors import BadRequest, ServingError, WorldError
from sublet.serving.client.call_arguments import Signatures
from sublet.serving.frontend.proto import serving
from sublet.tools.loadtest.inputs import Arrays

_ANSWERED = Answer({})


class RestTransport:
    """Calls one model at an address through REST."""

    rows = 1

    def __init__(self, url: str, model: str, version: int | None, token: str = "") -> None:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname, parts.port or 80
        except ValueError:
            host, port = None, 0
        if host is None or parts.scheme != "http" or parts.path.strip("/"):
            raise BadRequest(
                f"--url {url} cannot be used.", "Write http://HOST:PORT, such as http://[::1]:8501."
            )
        self.about = f"{model} at {url}, through REST"
        self._url = url
        self._host, self._port = host, port
        which = "" if version is None else f"/versions/{version}"
        self._path = f"/v1/models/{quote(model, safe='')}{which}"
        self._head = f"Host: {parts.netloc}\r\n"
        if token:
            self._head += f"Authorization: Bearer {token}\r\n"
        self._requests: Iterator[bytes] = iter(())
        self._all: list[Connection] = []
        self._idle: list[Connection] = []

    async def describe(self) -> Signatures:
        connection = await self._connect()
        try:
            ask = f"GET {self._path}/metadata HTTP/1.1\r\n{self._head}\r\n"
            body = await connection.send(ask.encode())
            given = json_format.ParseDict(
                json.loads(body)["metadata"]["signature_def"],
                serving("SignatureDefMap")(),
                ignore_unknown_fields=True,
            )
            found = given.signature_def.items()
            return Signatures({name: Signature.from_message(one) for name, one in found})
        except (ValueError, KeyError, TypeError, json_format.ParseError):
            raise WorldError(
                f"{self._url} does not speak TensorFlow Serving's REST API.",
                "Its GET /v1/models/NAME/metadata tells no signatures.",
            ) from None
        finally:
            connection.close()

    def prepare(self, name: str, signature: Signature, inputs: Sequence[Arrays], rows: int) -> None:
        self.rows = rows
        self._requests = itertools.cycle([self._request(name, signature, one) for one in inputs])

    async def ready(self, concurrency: int) -> None:
        self._all = [one for one in self._all if not one.lost]
        while len(self._all) < concurrency:
            self._all.append(await self._connect())
        self._idle = list(self._all)

    def call(self) -> "asyncio.Future[Answer]":
        if not self._idle:
            raise WorldError(f"{self._url} has closed its connections.", "Is it still there?")
        connection = self._idle.pop()
        future = connection.call(next(self._requests))
        # Before anybody hears of the answer, and makes the next call.
        future.add_done_callback(lambda _: self._give_back(connection))
        return future

    async def close(self) -> None:
        for connection in self._all:
            connection.close()

    async def _connect(self) -> "Connection":
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(Connection, self._host, self._port)
        except OSError as error:
            raise WorldError(
                f"{self._url} does not answer: {error.strerror or error}.",
                "Is the server started? REST is usually on port 8501.",
            ) from None
        return connection

    def _request(self, name: str, signature: Signature, inputs: Arrays) -> bytes:
        plain = {key: _plain(array) for key, array in inputs.items()}
        document: dict[str, Any] = {} if name == DEFAULT else {"signature_name": name}
        if not batchable(signature):
            document["inputs"] = plain
        elif len(plain) == 1:
            (document["instances"],) = plain.values()
        else:
            rows = zip(*plain.values(), strict=True)
            document["instances"] = [dict(zip(plain, row, strict=True)) for row in rows]
        body = json.dumps(document).encode()
        head = (
            f"POST {self._path}:predict HTTP/1.1\r\n{self._head}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def _give_back(self, connection: "Connection") -> None:
        if not connection.lost:
            self._idle.append(connection)


class Connection(asyncio.Protocol):
    """One request at a time. The methods that begin with `on_` are the parser's to call."""

    def __init__(self) -> None:
        self.lost = False
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._waiting: asyncio.Future[Any] | None = None
        self._wanted = False  # Whether the one who waits wants the body.

    def send(self, request: bytes) -> "asyncio.Future[bytes]":
        return self._begin(request, True)

    def call(self, request: bytes) -> "asyncio.Future[Answer]":
        """The same, for one who wants to know only that it came."""
        return self._begin(request, False)

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        if self._waiting is not None and not self._waiting.done():
            text = "The server has closed the connection."
            self._waiting.set_exception(ServingError(text, Code.UNAVAILABLE))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body, self._body = b"".join(self._body), []
        future, self._waiting = self._waiting, None
        if not self._parser.should_keep_alive():
            self.lost = True
            self._transport.close()
        if future is None or future.done():
            return
        status = self._parser.get_status_code()
        if status != 200:
            code = {404: Code.NOT_FOUND, 400: Code.INVALID_ARGUMENT}.get(status, Code.UNAVAILABLE)
            future.set_exception(ServingError(_error(status, body), code))
        else:
            future.set_result(body if self._wanted else _ANSWERED)

    def _begin(self, request: bytes, wanted: bool) -> "asyncio.Future[Any]":
        self._wanted = wanted
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._waiting


def _plain(array: Array) -> Any:
    if array.dtype.kind == "O":
        flat = [{"b64": base64.b64encode(one).decode()} for one in array.ravel()]
        return np.array(flat, object).reshape(array.shape).tolist()
    if array.dtype.kind == "c":
        raise BadRequest(f"JSON has no {array.dtype} numbers.", "Measure it without --url.")
    if array.dtype.kind == "V":  # bfloat16, which NumPy has not of its own.
        return array.astype(np.float32).tolist()
    return array.tolist()


def _error(status: int, body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return f"The server answers with status {status}."
