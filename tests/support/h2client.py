"""A client of HTTP/2 that may say anything, also what no client should."""

import socket
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple, Self

from sublet.serving.frontend.grpc import frames, hpack
from support.sandbox import PATIENCE

POST = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/tensorflow.serving.PredictionService/Predict"),
    (b":authority", b"localhost"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def fault(self) -> int:
        """Of a RST_STREAM or a GOAWAY."""
        at = 4 if self.kind == frames.GOAWAY else 0
        return int.from_bytes(self.payload[at : at + 4], "big")


class Client:
    """A connection; greets unless it is told not to."""

    def __init__(self, port: int | str, greet: bool = True) -> None:
        """To a port of this machine, or to a Unix socket."""
        if isinstance(port, str):
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(PATIENCE)
            self._socket.connect(port)
        else:
            self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = hpack.Decoder()
        self._held = b""
        if greet:
            self.send(frames.PREFACE + frames.settings({}))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        wrong: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def headers(
        self,
        stream: int,
        headers: hpack.Headers = POST,
        flags: int = frames.END_HEADERS,
    ) -> None:
        self.send(frames.frame(frames.HEADERS, flags, stream, hpack.encode(headers)))

    def data(self, stream: int, data: bytes, flags: int = frames.END_STREAM) -> None:
        self.send(frames.frame(frames.DATA, flags, stream, data))

    def message(self, stream: int, message: bytes) -> None:
        """Send a complete call."""
        self.headers(stream)
        self.data(stream, b"\0" + len(message).to_bytes(4, "big") + message)

    def raw(self) -> bytes:
        """All bytes until the server hangs up."""
        while piece := self._receive():
            self._held += piece
        return self._held

    def frames(self) -> Iterator[Frame]:
        """Each frame of the server, until it hangs up."""
        while True:
            while len(self._held) >= frames.HEAD_SIZE:
                high, low, kind, flags, stream = frames.HEAD.unpack_from(self._held)
                end = frames.HEAD_SIZE + (high << 8 | low)
                if len(self._held) < end:
                    break
                payload, self._held = self._held[frames.HEAD_SIZE : end], self._held[end:]
                yield Frame(kind, flags, stream, payload)
            if not (piece := self._receive()):
                return
            self._held += piece

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(65536)
        except ConnectionResetError:
            return b""

    def next(self, kind: int, stream: int | None = None) -> Frame:
        """The next frame of a kind."""
        for each in self.frames():
            if each.kind == kind and stream in (None, each.stream):
                return each
        raise AssertionError("the server has hung up")

    def status(self, stream: int) -> tuple[int, str]:
        """How a call ends; skips its messages."""
        for each in self.frames():
            if each.stream == stream and each.kind == frames.HEADERS:
                headers = dict(self._decoder.decode(each.payload))
                if each.flags & frames.END_STREAM:
                    return int(headers[b"grpc-status"]), headers.get(b"grpc-message", b"").decode()
            assert each.kind != frames.GOAWAY, each
            assert (each.kind, each.stream) != (frames.RST_STREAM, stream), each
        raise AssertionError("the server has hung up")

    def goaway(self) -> int:
        """Why the server ends the connection; it must hang up after that."""
        fault = self.next(frames.GOAWAY).fault
        assert not list(self.frames())
        return fault
