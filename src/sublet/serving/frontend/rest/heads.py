"""A request's first lines, read strictly by httptools (llhttp), and remembered.

A client that keeps its connection sends the same first lines again and again, so a head whose bytes
were seen before is not read twice. Framing is decided here and nowhere else: a request with two
lengths, a length and chunks, or a coding that we do not know never gets further.
"""

import re
from typing import Any

import httptools

from sublet.serving.frontend.limits import Limits
from sublet.serving.frontend.rest.messages import Head, Refused

_METHOD = re.compile(rb"[A-Z]{1,20} ")
_NO_METHOD = "Malformed HTTP request: it does not begin with a method."
_TLS = b"\x16\x03"
"""How a client begins that wants to speak in secret."""
_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[\w.~!$&'()*+,;=%-]*)(:\d*)?", re.ASCII)
_REMEMBERED = 1024
_LARGEST_REMEMBERED = 4096


class Heads:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._known: dict[bytes, Head] = {}

    def read(self, raw: bytes) -> Head:
        """The head in these bytes, its empty line included. Raises Refused."""
        head = self._known.get(raw)
        if head is None:
            head = parse(raw, self._limits)
            if len(raw) <= _LARGEST_REMEMBERED:
                if len(self._known) >= _REMEMBERED:
                    self._known.clear()
                self._known[raw] = head
        return head


class _Lines:
    """What httptools calls while it reads."""

    def __init__(self, most: int) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self._most = most

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= self._most:
            raise Refused(431, f"More than {self._most} headers.")
        self.headers.append((name.lower(), value.strip()))


def check_beginning(raw: bytes) -> None:
    """Raises Refused if this cannot become a head, whatever follows: nobody need wait for that."""
    if raw.startswith(_TLS):
        raise Refused(400, "This port speaks plain HTTP, not TLS: write http://.")
    if raw.strip(b"\r\n") and not raw.lstrip(b"\r\n")[:1].isalpha():
        raise Refused(400, _NO_METHOD)


def parse(raw: bytes, limits: Limits) -> Head:
    """Read a head. Raises Refused."""
    lines = _Lines(limits.headers)
    parser: Any = httptools.HttpRequestParser(lines)
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # An upgrade is only an offer: we go on with HTTP/1.1.
    except httptools.HttpParserInvalidMethodError:
        if _METHOD.match(raw):
            raise Refused(501, "Unknown HTTP method.") from None
        raise Refused(400, _NO_METHOD) from None
    except httptools.HttpParserCallbackError as failed:
        if isinstance(failed.__context__, Refused):
            raise failed.__context__ from None
        raise
    except httptools.HttpParserError as failed:
        raise Refused(400, f"Malformed HTTP request: {failed}.") from None
    version = parser.get_http_version()
    if version not in ("1.0", "1.1"):
        raise Refused(505, f"HTTP/{version} is not supported; use HTTP/1.1.")
    return _head(parser, lines, int(version[2:]))


def _head(parser: Any, lines: _Lines, minor: int) -> Head:
    length, gzip, split, expects, authorization, trace = 0, False, None, False, b"", b""
    keep_alive = minor == 1
    seen: set[bytes] = set()
    for name, value in lines.headers:
        if name in _ONCE:
            if name in seen:
                raise Refused(400, f"The header {name.decode()} is given twice.")
            seen.add(name)
        if name == b"content-length":
            length = _number(name, value)
        elif name == b"transfer-encoding":
            if minor == 0:
                raise Refused(400, "HTTP/1.0 has no Transfer-Encoding.")
            if value.lower() != b"chunked":
                raise Refused(501, "The only Transfer-Encoding that is understood is chunked.")
            length = -1
        elif name == b"content-encoding":
            if value.lower() not in (b"gzip", b"x-gzip", b"identity"):
                raise Refused(415, "The only Content-Encoding that is understood is gzip.")
            gzip = value.lower() != b"identity"
        elif name == b"connection":
            # Not asked of llhttp: it forgets when a request has no body, and so is complete.
            options = {option.strip() for option in value.lower().split(b",")}
            keep_alive = b"close" not in options and (keep_alive or b"keep-alive" in options)
        elif name == b"expect":
            if value.lower() != b"100-continue":
                raise Refused(417, "The only Expect that is understood is 100-continue.")
            expects = minor == 1
        elif name == b"inference-header-content-length":
            split = _number(name, value)
        elif name == b"authorization":
            authorization = value
        elif name == b"traceparent":
            trace = value
        elif name == b"host" and not _HOST.fullmatch(value):
            raise Refused(400, "The header host is no name of a host.")
    if minor == 1 and b"host" not in seen:
        raise Refused(400, "The header host is missing.")
    if {b"content-length", b"transfer-encoding"} <= seen:
        raise Refused(400, "A request has a Content-Length or a Transfer-Encoding, not both.")
    path = lines.url.decode("latin-1").partition("?")[0].partition("#")[0]
    if path[:4].lower() == "http":  # As a proxy may write it: http://host:port/path
        path = "/" + "".join(path.split("/", 3)[3:])
    return Head(
        parser.get_method().decode("latin-1"),
        path,
        length,
        keep_alive,
        minor,
        expects,
        gzip,
        split,
        authorization,
        trace,
    )


_ONCE = frozenset(
    (
        b"content-length",
        b"transfer-encoding",
        b"content-encoding",
        b"authorization",
        b"host",
        b"expect",
        b"inference-header-content-length",
    )
)


def _number(name: bytes, value: bytes) -> int:
    if not value.isdigit() or len(value) > 18:
        raise Refused(400, f"The header {name.decode()} is not a number of bytes.")
    return int(value)
