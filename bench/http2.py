"""As much of HTTP/2 as a load client needs: one gRPC call at a time on one connection.

A client of Python's gRPC costs as much as its server and would be what is measured. Here a request
is bytes that were prepared: its headers use nothing of HPACK's table, so they never change.
"""

import struct
from collections.abc import Callable

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_INITIAL_WINDOW, _FRAME = 4, 16384
_DEFAULT_WINDOW = 65535
_LARGE = 2**30


class Broken(Exception):
    """The server ended the call or the connection in a way that is no answer."""


class Caller:
    """Feed it what arrives, give it requests one at a time; `write` gets what is to be sent."""

    def __init__(self, path: str, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._headers = _block(path)
        self._stream = -1
        self._window = _DEFAULT_WINDOW
        self._first_window = _DEFAULT_WINDOW
        self._stream_window = 0
        self._unsent = b""
        self._buffer = b""
        self._message = bytearray()
        self._taken = 0

    def open(self) -> None:
        """Greet the server, and let it send as much as it likes."""
        settings = struct.pack(">HI", _INITIAL_WINDOW, _LARGE)
        self._write(
            _PREFACE
            + _frame(_SETTINGS, 0, 0, settings)
            + _frame(_WINDOW, 0, 0, struct.pack(">I", _LARGE))
        )

    def send(self, body: bytes) -> None:
        """Begin a call whose framed message is `body`."""
        self._stream += 2
        self._stream_window = self._first_window
        self._message.clear()
        self._unsent = body
        self._flush(_frame(_HEADERS, _END_HEADERS, self._stream, self._headers))

    def feed(self, data: bytes) -> bytes | None:
        """What has arrived; returns the answer's message once the call has ended.

        Empty if it ended without one: that is how gRPC refuses.
        """
        self._buffer += data
        buffer, at, answer = self._buffer, 0, None
        while len(buffer) - at >= 9:
            size = int.from_bytes(buffer[at : at + 3], "big")
            if len(buffer) - at < 9 + size:
                break
            kind, flags = buffer[at + 3], buffer[at + 4]
            stream = int.from_bytes(buffer[at + 5 : at + 9], "big")
            payload = buffer[at + 9 : at + 9 + size]
            at += 9 + size
            if self._take(kind, flags, stream, payload):
                answer = bytes(self._message[5:])
        self._buffer = buffer[at:]
        return answer

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> bool:
        """True if this frame ends the call."""
        if kind == _DATA and stream == self._stream:
            self._message += payload
            self._taken += len(payload)
            if self._taken > _LARGE // 2:
                self._write(_frame(_WINDOW, 0, 0, struct.pack(">I", self._taken)))
                self._taken = 0
        elif kind == _WINDOW:
            more = int.from_bytes(payload, "big")
            if stream == 0:
                self._window += more
            elif stream == self._stream:
                self._stream_window += more
            self._flush()
        elif kind == _SETTINGS and not flags & _ACK:
            self._settle(payload)
        elif kind == _PING and not flags & _ACK:
            self._write(_frame(_PING, _ACK, 0, payload))
        elif kind == _GOAWAY or (kind == _RST and stream == self._stream):
            raise Broken(f"HTTP/2 frame {kind}: {payload!r}")
        return kind in (_DATA, _HEADERS) and bool(flags & _END_STREAM) and stream == self._stream

    def _settle(self, payload: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", payload):
            if name == _INITIAL_WINDOW:
                self._stream_window += value - self._first_window
                self._first_window = value
        self._write(_frame(_SETTINGS, _ACK, 0, b""))
        self._flush()

    def _flush(self, first: bytes = b"") -> None:
        """Send what the server's windows allow."""
        out = [first]
        while self._unsent:
            size = min(len(self._unsent), self._window, self._stream_window, _FRAME)
            if size <= 0:
                break
            part, self._unsent = self._unsent[:size], self._unsent[size:]
            self._window -= size
            self._stream_window -= size
            out.append(_frame(_DATA, 0 if self._unsent else _END_STREAM, self._stream, part))
        if any(out):
            self._write(b"".join(out))


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
    return head + payload


def _block(path: str) -> bytes:
    headers = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "127.0.0.1"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    )
    # Literal, never indexed, names in full: the lengths fit seven bits.
    return b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in headers
    )
