"""Requests and replies as plain records, and a reply as the bytes that go out."""

import time
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import NamedTuple

import orjson

from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.serving.frontend.peer import Peer

Body = bytes | bytearray
JSON = b"application/json"

_STATUS: Mapping[int, int] = {
    Code.OK: 200,
    Code.CANCELLED: 499,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.UNAVAILABLE: 503,
    Code.UNAUTHENTICATED: 401,
}
_PHRASES = {status.value: status.phrase for status in HTTPStatus} | {499: "Client Closed Request"}


_ASK_FOR_TOKEN = b"WWW-Authenticate: Bearer\r\n"


class Head(NamedTuple):
    """What the framing of a request and the APIs need of its first lines."""

    method: str
    path: str  # Still percent-encoded, without the query.
    length: int = 0
    """Of the body in bytes; -1: it comes in chunks."""
    keep_alive: bool = True
    minor: int = 1  # Of the HTTP version.
    expects: bool = False  # The client waits for leave to send the body.
    gzip: bool = False
    split: int | None = None
    """Where the JSON of a request ends and raw tensors begin (Open Inference Protocol)."""
    authorization: bytes = b""  # As the client wrote it.
    trace: bytes = b""  # The `traceparent` of W3C, as the client wrote it.


class Request(NamedTuple):
    """A request that is complete."""

    head: Head
    body: Body
    received: float  # By time.monotonic.
    peer: Peer = Peer()


class Reply(NamedTuple):
    status: int
    body: bytes
    kind: bytes = JSON
    headers: bytes = b""  # More header lines, each with its line end.


class Refused(Exception):
    """The request is not even HTTP, or too much of it: it is answered and the connection closed."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def error(status: int, text: str) -> Reply:
    """An error reply in TensorFlow Serving's form."""
    # Whatever a model or a client put into the text, what goes out is valid UTF-8.
    body = orjson.dumps({"error": text.encode("utf-8", "replace").decode()})
    return Reply(status, body, headers=_ASK_FOR_TOKEN if status == 401 else b"")


def failure(failed: ServingError) -> Reply:
    """The error reply for a call that failed."""
    return error(status_of(failed.code), failed.message)


def status_of(code: int) -> int:
    """The HTTP status that stands for a code; 500 for what is our fault."""
    return _STATUS.get(code, 500)


class _Prefixes(dict[tuple[int, bytes], bytes]):
    """A reply's first lines but for its length, made once per second."""

    def __init__(self) -> None:
        super().__init__()
        self._date = ""

    def __missing__(self, key: tuple[int, bytes]) -> bytes:
        status, kind = key
        self[key] = made = (
            f"HTTP/1.1 {status} {_PHRASES.get(status, 'Unknown')}\r\nDate: {self._date}\r\n"
        ).encode() + b"Content-Type: %b\r\nContent-Length: " % kind
        return made

    def date(self) -> None:
        """Take the time of day; whoever sweeps calls this once per second."""
        self.clear()
        self._date = formatdate(time.time(), usegmt=True)


prefixes = _Prefixes()
prefixes.date()

CORS = (
    b"Access-Control-Allow-Origin: *\r\n"
    b"Access-Control-Allow-Methods: GET, POST\r\n"
    b"Access-Control-Allow-Headers: Authorization, Content-Type\r\n"
)
"""Lets a browser show replies to the pages of any site."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_HOW: Mapping[tuple[bool, int], bytes] = {
    (True, 1): b"\r\n\r\n",
    (True, 0): b"\r\nConnection: keep-alive\r\n\r\n",
    (False, 1): b"\r\nConnection: close\r\n\r\n",
    (False, 0): b"\r\nConnection: close\r\n\r\n",
}


def first_lines(reply: Reply, keep_alive: bool, minor: int, more: bytes = b"") -> bytes:
    """All of a reply but its body; `more` are header lines that all replies have."""
    length = b"%d" % len(reply.body)
    if more or reply.headers:
        length += b"\r\n" + (reply.headers + more)[:-2]
    return prefixes[reply.status, reply.kind] + length + _HOW[keep_alive, minor]
