"""gRPC over HTTP/2: what a request asks, the form of its messages, and how a call ends.

Pure: bytes in, bytes out. Connections carry it.
"""

import re
import zlib
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import NamedTuple, Protocol

from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.serving.access import Right
from sublet.serving.frontend.grpc import hpack
from sublet.serving.frontend.peer import Peer

PREFIX = 5
"""Bytes before each message: whether it is compressed, and its size."""
LARGEST_MESSAGE = 2**31 - 1
LARGEST_UNPACKED = 1 << 26
"""Bytes of a message that came compressed: few bytes must not become many."""
_LONGEST_TEXT = 2048
_CONTENT = (b"content-type", b"application/grpc")
_ACCEPTED = (b"grpc-accept-encoding", b"identity,deflate,gzip")

Data = bytes | bytearray | memoryview
Unary = Callable[[Data, float | None], Awaitable[Data]]
"""Answers a serialized request; the float is its deadline, a time of `time.monotonic`."""
Streaming = Callable[["Call"], Awaitable[None]]
Memory = Callable[[int, Data], memoryview]
"""Gives writable memory for a message, by its size and its first bytes."""


caller: ContextVar[Peer] = ContextVar("caller")
"""Whose call a task answers."""


class Call(Protocol):
    """A call in which messages come and go, as its service sees it."""

    deadline: float | None

    async def read(self) -> Data | None:
        """The next message; None after the last one."""

    async def write(self, message: Data) -> None:
        """Send a message; waits while the client takes no more."""


class Method(NamedTuple):
    """How a method is answered: as one of the two."""

    unary: Unary | None = None
    streaming: Streaming | None = None
    memory: Memory | None = None  # Where large requests are to lie, if anywhere.
    right: Right = Right.CALL  # What a client needs for it.


Methods = Mapping[bytes, Method]  # By path.


class Head(NamedTuple):
    """What the headers of a request say."""

    path: bytes = b""
    timeout: float | None = None  # Seconds.
    encoding: bytes = b"identity"
    authorization: bytes = b""
    length: int | None = None  # Bytes of the body, if they are announced.
    refusal: bytes = b""  # The HTTP status for what is no gRPC.
    malformed: bool = False  # Not even HTTP.
    trace: bytes = b""  # The `traceparent` of W3C, as the client wrote it.


@lru_cache(256)
def head(headers: hpack.Headers) -> Head:
    """Read the headers of a request."""
    seen: dict[bytes, bytes] = {}
    regular = False
    for name, value in headers:
        pseudo = name.startswith(b":")
        if pseudo and (regular or name in seen or name not in _PSEUDO):
            return Head(malformed=True)
        regular = regular or not pseudo
        if not (pseudo or _is_field(name, value)) or not _VALUE.fullmatch(value):
            return Head(malformed=True)
        seen[name] = value
    if not (seen.get(b":method") and seen.get(b":path") and seen.get(b":scheme")):
        return Head(malformed=True)
    length = seen.get(b"content-length")
    if length is not None and not _LENGTH.fullmatch(length):
        return Head(malformed=True)
    if seen[b":method"] != b"POST":
        return Head(refusal=b"405")
    if not _TYPE.fullmatch(seen.get(b"content-type", b"")):
        return Head(refusal=b"415")
    return Head(
        path=seen[b":path"],
        timeout=_timeout(seen.get(b"grpc-timeout")),
        encoding=seen.get(b"grpc-encoding", b"identity"),
        authorization=seen.get(b"authorization", b""),
        length=None if length is None else int(length),
        trace=seen.get(b"traceparent", b""),
    )


def are_trailers(headers: hpack.Headers) -> bool:
    """Whether these may follow a body."""
    return all(_is_field(name, value) for name, value in headers)


def _is_field(name: bytes, value: bytes) -> bool:
    """Whether this is a field as RFC 9113 (8.2) allows it: without what one of HTTP/1.1 ends with,
    and without what speaks of a connection."""
    return (
        _NAME.fullmatch(name) is not None
        and _VALUE.fullmatch(value) is not None
        and name not in _FORBIDDEN
        and (name != b"te" or value == b"trailers")
    )


_NAME = re.compile(rb"[!-9;-@[-~]+")  # No space, no upper case, no colon, nothing beyond ASCII.
_VALUE = re.compile(rb"[^\0\r\n]*")  # Spaces around it are harmless, and clients send them.
_LENGTH = re.compile(rb"[0-9]{1,18}")
_PSEUDO = (b":method", b":path", b":scheme", b":authority")
_FORBIDDEN = (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
_TYPE = re.compile(rb"application/grpc(\+proto)?(;.*)?")
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")


def _timeout(value: bytes | None) -> float | None:
    found = value and _TIMEOUT.fullmatch(value)
    return int(found[1]) * _UNITS[found[2]] if found else None


def unpack(flag: int, message: bytes, encoding: bytes, limit: int) -> bytes:
    """A complete message as it was before it was compressed, if its flag says that it is."""
    if not flag:
        return message
    if flag != 1:
        raise ServingError("A message has an unknown flag.", Code.INTERNAL)
    if encoding not in (b"gzip", b"deflate"):
        raise ServingError(
            "A message is compressed, but grpc-encoding names no way that is known here.",
            Code.INTERNAL if encoding == b"identity" else Code.UNIMPLEMENTED,
        )
    limit = min(limit, LARGEST_UNPACKED)
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16 if encoding == b"gzip" else zlib.MAX_WBITS)
    try:
        unpacked = unpacker.decompress(message, limit + 1)
    except zlib.error as wrong:
        raise ServingError(f"A message cannot be decompressed: {wrong}", Code.INTERNAL) from None
    if len(unpacked) > limit:
        raise too_large(len(unpacked), limit)
    if not unpacker.eof:
        raise ServingError("A compressed message is cut off.", Code.INTERNAL)
    return unpacked


def too_large(size: int, limit: int) -> ServingError:
    """The error for a message beyond the limit."""
    return ServingError(
        f"Received message larger than max ({size} vs. {limit})", Code.RESOURCE_EXHAUSTED
    )


OPENING = hpack.encode(((b":status", b"200"), _CONTENT, _ACCEPTED))  # The headers of every answer.
ENDING = hpack.encode(((b"grpc-status", b"0"),))  # The trailers of a call that went well.


def ending(code: int, text: str) -> bytes:
    """The trailers of a call that failed."""
    return hpack.encode(_status(code, text))


def failure(code: int, text: str) -> bytes:
    """Headers and trailers in one, for a call that fails before it sent anything."""
    return hpack.encode(((b":status", b"200"), _CONTENT, _ACCEPTED, *_status(code, text)))


def refusal(status: bytes) -> bytes:
    """The headers of an answer to what is no gRPC."""
    text = f"HTTP status {status.decode()}: this port speaks gRPC."
    return hpack.encode(((b":status", status), *_status(Code.UNKNOWN, text)))


def _status(code: int, text: str) -> tuple[hpack.Header, ...]:
    status = (b"grpc-status", b"%d" % code)
    return (status, (b"grpc-message", _percent(text))) if text else (status,)


def _percent(text: str) -> bytes:
    """Text as a header may hold it."""
    data = text.encode("utf-8", "replace")[:_LONGEST_TEXT]
    return b"".join(_PERCENT[byte] for byte in data)


_PERCENT = tuple(
    bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
    for byte in range(256)
)
