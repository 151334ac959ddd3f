"""A load client for HTTP: prepared request bytes over many connections, one at a time on each.

    python -m bench.load http://127.0.0.1:8501/v1/models/mlp:predict --body body.json -c 32 -s 10

It reads no more of a reply than it must, so that it costs little next to the server: the status,
the length, and the body's bytes. With several bodies each connection takes the next one in turn.
"""

import argparse
import asyncio
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from bench import figures


@dataclass(frozen=True)
class Load:
    """What one run of the client saw."""

    seconds: float
    answers: int
    """With status 200."""
    refused: int
    """With any other status."""
    latencies: tuple[float, ...]
    """Of the answers with status 200, in seconds, sorted."""

    @property
    def rate(self) -> float:
        """Answers per second."""
        return self.answers / self.seconds

    def percentile(self, share: float) -> float:
        """Latency that this share of the answers kept, in seconds."""
        if not self.latencies:
            return float("nan")
        return self.latencies[min(int(share * len(self.latencies)), len(self.latencies) - 1)]

    def __str__(self) -> str:
        return (
            f"{self.rate:8.0f} req/s   p50 {self.percentile(0.5) * 1000:7.2f} ms   "
            f"p99 {self.percentile(0.99) * 1000:7.2f} ms   "
            f"{self.answers} answers, {self.refused} refused in {figures.seconds(self.seconds)}"
        )


def request(path: str, body: bytes, host: str = "localhost", more: bytes = b"") -> bytes:
    """A POST as it goes over the wire."""
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    return head.encode() + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


class _Client(asyncio.Protocol):
    """One connection: sends the next request when a reply is whole."""

    def __init__(self, run: "_Run", turn: int) -> None:
        self._run = run
        self._turn = turn
        self._got = bytearray()
        self._began = 0.0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        got = self._got
        got += data
        end = got.find(b"\r\n\r\n")
        if end < 0:
            return
        at = got.lower().find(b"content-length:", 0, end)
        length = int(got[at + 15 : got.find(b"\r", at)]) if at >= 0 else 0
        if len(got) < end + 4 + length:
            return
        now = time.perf_counter()
        self._run.note(got[9:12] == b"200", now, now - self._began)
        del got[: end + 4 + length]
        if now < self._run.until:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._run.lost()

    def _send(self) -> None:
        requests = self._run.requests
        self._began = time.perf_counter()
        self._transport.write(requests[self._turn % len(requests)])
        self._turn += 1


class _Run:
    def __init__(self, requests: Sequence[bytes], connections: int, until: float) -> None:
        self.requests = requests
        self.until = until
        self.measured_from = float("inf")
        self.latencies: list[float] = []
        self.refused = 0
        self.done = asyncio.Event()
        self._open = connections

    def note(self, good: bool, now: float, latency: float) -> None:
        if now < self.measured_from:
            return
        if good:
            self.latencies.append(latency)
        else:
            self.refused += 1

    def lost(self) -> None:
        self._open -= 1
        if not self._open:
            self.done.set()


async def drive(
    where: tuple[str, int] | str,
    requests: Sequence[bytes],
    connections: int = 32,
    seconds: float = 5.0,
    warm_up: float = 1.0,
) -> Load:
    """Keep so many connections busy; `where` is a host and a port, or the path of a socket."""
    loop = asyncio.get_running_loop()
    began = time.perf_counter() + warm_up
    run = _Run(requests, connections, began + seconds)
    run.measured_from = began
    for index in range(connections):
        # Each connection begins at its own place of the list.
        start = index * len(requests) // connections
        client = _Client(run, start)
        if isinstance(where, str):
            await loop.create_unix_connection(lambda client=client: client, where)  # type: ignore[misc]
        else:
            await loop.create_connection(lambda client=client: client, *where)  # type: ignore[misc]
    await run.done.wait()
    took = time.perf_counter() - began
    return Load(took, len(run.latencies), run.refused, tuple(sorted(run.latencies)))


def measure(
    where: tuple[str, int] | str,
    requests: Sequence[bytes],
    connections: int = 32,
    seconds: float = 5.0,
    warm_up: float = 1.0,
) -> Load:
    """`drive` in an event loop of its own, uvloop's if it is there."""
    work = drive(where, requests, connections, seconds, warm_up)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    load: Load = uvloop.run(work)
    return load


def main() -> None:
    """The command line."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    asked.add_argument("url")
    asked.add_argument("--body", type=Path, action="append", required=True)
    asked.add_argument("-c", "--connections", type=int, default=32)
    asked.add_argument("-s", "--seconds", type=float, default=5.0)
    asked.add_argument("--unix", help="path of a Unix socket to connect to instead")
    given = asked.parse_args()
    url = urlsplit(given.url)
    requests = [request(url.path, body.read_bytes()) for body in given.body]
    where = given.unix or (socket.gethostbyname(url.hostname or "localhost"), url.port or 80)
    print(measure(where, requests, given.connections, given.seconds))


if __name__ == "__main__":
    main()
