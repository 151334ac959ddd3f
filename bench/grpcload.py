"""A load client for gRPC: prepared messages over many connections, one call at a time on each.

    python -m bench.grpcload 127.0.0.1:8500 --body request.pb -c 32 -s 10

It speaks just enough HTTP/2 to call any gRPC server, and reads no more of an answer than how it
ends, so that it costs little next to the server: Python's own gRPC client takes more than most
servers do. Messages must fit into the window that a server gives at first, 64 KiB.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from sublet.serving.grpc import frames, hpack
from sublet.serving.grpc.frames import Setting, frame

PREDICT = "/tensorflow.serving.PredictionService/Predict"
_WINDOW = frames.LARGEST_WINDOW
_GREETING = (
    frames.PREFACE
    + frames.settings({Setting.INITIAL_WINDOW_SIZE: _WINDOW, Setting.ENABLE_PUSH: 0})
    + frames.window_update(0, _WINDOW - 65535)
)
_WENT_WELL = (b"grpc-status", b"0")


@dataclass(frozen=True)
class GrpcLoad:
    """What one run of the client saw."""

    seconds: float
    refused: int
    """Calls that ended with another status than OK."""
    latencies: tuple[float, ...]
    """Of the calls that went well, in seconds, sorted."""

    @property
    def rate(self) -> float:
        """Calls per second that went well."""
        return len(self.latencies) / self.seconds

    def percentile(self, share: float) -> float:
        """Latency that this share of the calls kept, in seconds."""
        if not self.latencies:
            return float("nan")
        return self.latencies[min(int(share * len(self.latencies)), len(self.latencies) - 1)]

    def __str__(self) -> str:
        return (
            f"{self.rate:8.0f} calls/s   p50 {self.percentile(0.5) * 1000:7.2f} ms   "
            f"p99 {self.percentile(0.99) * 1000:7.2f} ms   "
            f"{len(self.latencies)} answers, {self.refused} refused in {self.seconds:.1f} s"
        )


def header_blocks(path: str) -> tuple[bytes, bytes]:
    """The headers of a connection's first call, which fill its table, and those of all others."""
    kept = (
        (b":path", path.encode()),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
    post_http = b"\x83\x86"
    first = b"".join(
        b"\x40" + bytes((len(name),)) + name + bytes((len(value),)) + value for name, value in kept
    )
    return post_http + first, post_http + bytes(0x80 | 62 + n for n in reversed(range(len(kept))))


class _Client(asyncio.Protocol):
    """One connection: makes the next call when one has ended."""

    def __init__(self, run: "_Run", turn: int) -> None:
        self._run = run
        self._turn = turn
        self._stream = 1
        self._held = b""
        self._decoder = hpack.Decoder()
        self._began = 0.0
        self._block, self._later = header_blocks(run.path)
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        transport.write(_GREETING)  # type: ignore[attr-defined]
        self._call()

    def data_received(self, data: bytes) -> None:
        data = self._held + data
        at = 0
        while len(data) - at >= frames.HEAD_SIZE:
            high, low, kind, flags, _ = frames.HEAD.unpack_from(data, at)
            end = at + frames.HEAD_SIZE + (high << 8 | low)
            if len(data) < end:
                break
            payload = data[at + frames.HEAD_SIZE : end]
            at = end
            if kind in (frames.SETTINGS, frames.PING) and not flags & frames.ACK:
                answer = b"" if kind == frames.SETTINGS else payload
                self._transport.write(frame(kind, frames.ACK, 0, answer))
            elif kind == frames.HEADERS:
                headers = self._decoder.decode(payload)
                if flags & frames.END_STREAM:
                    self._ended(_WENT_WELL in headers)
            elif kind in (frames.RST_STREAM, frames.GOAWAY):
                self._transport.close()
        self._held = data[at:]

    def connection_lost(self, exc: Exception | None) -> None:
        self._run.lost()

    def _ended(self, well: bool) -> None:
        now = time.perf_counter()
        self._run.note(well, now, now - self._began)
        if now < self._run.until:
            self._call()
        else:
            self._transport.close()

    def _call(self) -> None:
        messages = self._run.messages
        body = messages[self._turn % len(messages)]
        self._turn += 1
        self._began = time.perf_counter()
        self._transport.write(
            frame(frames.HEADERS, frames.END_HEADERS, self._stream, self._block)
            + frame(frames.DATA, frames.END_STREAM, self._stream, body)
        )
        self._stream += 2
        self._block = self._later


class _Run:
    def __init__(
        self, path: str, messages: Sequence[bytes], connections: int, began: float, until: float
    ) -> None:
        self.path = path
        self.messages = [b"\0" + len(each).to_bytes(4, "big") + each for each in messages]
        self.until = until
        self.latencies: list[float] = []
        self.refused = 0
        self.done = asyncio.Event()
        self._began = began
        self._open = connections

    def note(self, well: bool, now: float, latency: float) -> None:
        if now < self._began:
            return
        if well:
            self.latencies.append(latency)
        else:
            self.refused += 1

    def lost(self) -> None:
        self._open -= 1
        if not self._open:
            self.done.set()


async def drive(
    where: tuple[str, int] | str,
    messages: Sequence[bytes],
    connections: int = 32,
    seconds: float = 5.0,
    warm_up: float = 1.0,
    path: str = PREDICT,
) -> GrpcLoad:
    """Keep so many connections busy; `where` is a host and a port, or the path of a socket."""
    loop = asyncio.get_running_loop()
    began = time.perf_counter() + warm_up
    run = _Run(path, messages, connections, began, began + seconds)
    for index in range(connections):
        client = _Client(run, index * len(messages) // connections)
        if isinstance(where, str):
            await loop.create_unix_connection(lambda client=client: client, where)  # type: ignore[misc]
        else:
            await loop.create_connection(lambda client=client: client, *where)  # type: ignore[misc]
    await run.done.wait()
    took = time.perf_counter() - began
    return GrpcLoad(took, run.refused, tuple(sorted(run.latencies)))


def measure(
    where: tuple[str, int] | str,
    messages: Sequence[bytes],
    connections: int = 32,
    seconds: float = 5.0,
    warm_up: float = 1.0,
    path: str = PREDICT,
) -> GrpcLoad:
    """`drive` in an event loop of its own, uvloop's if it is there."""
    work = drive(where, messages, connections, seconds, warm_up, path)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    load: GrpcLoad = uvloop.run(work)
    return load


def main() -> None:
    """The command line."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    asked.add_argument("address", help="host:port, or unix:path")
    asked.add_argument("--body", type=Path, action="append", required=True)
    asked.add_argument("--path", default=PREDICT)
    asked.add_argument("-c", "--connections", type=int, default=32)
    asked.add_argument("-s", "--seconds", type=float, default=5.0)
    given = asked.parse_args()
    kind, _, rest = given.address.partition(":")
    where = rest if kind == "unix" else (kind, int(rest))
    messages = [body.read_bytes() for body in given.body]
    print(measure(where, messages, given.connections, given.seconds, path=given.path))


if __name__ == "__main__":
    main()
