"""The load client: connections with one request on the way each, in a process of its own.

    bench ──a Load──▶ python -m bench.callers ──▶ server
          ◀──Heard───

Closed loop (no rate): each connection sends its next request when the answer has come. Open loop
(a rate): requests are due at their times whether the server keeps up or not, and their latency
counts from then, so that a server which stalls cannot hide it.
"""

import asyncio
import base64
import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Literal, cast

from bench import figures, http2, processes
from bench.sandbox import ROOT

_TICK = 0.001
_PATIENCE = 20.0


@dataclass(frozen=True)
class Load:
    """What to send, how, and for how long."""

    protocol: Literal["http", "grpc"]
    port: int
    requests: tuple[bytes, ...]
    """HTTP in full, gRPC as framed messages."""
    order: tuple[int, ...] = ()
    """Which of them comes when, over and over; one after the other if nothing is said."""
    path: str = ""
    """The path of the gRPC method."""
    connections: int = 32
    warm: float = 0.5
    """Seconds that are not counted."""
    seconds: float = 2.0
    rate: float | None = None
    """Requests per second in all; None for a closed loop."""


@dataclass(frozen=True)
class Heard:
    """What came back within the window."""

    seconds: float
    answered: int
    refused: int = 0
    """Answers that are no 200 (HTTP), or that carry no message (gRPC)."""
    late: int = 0
    """Without any answer when the patience ended."""
    p50: float = 0.0
    p99: float = 0.0
    most: float = 0.0
    refused_p99: float = 0.0
    statuses: dict[str, int] = field(default_factory=dict)
    sample: str = ""
    """One answer, to be looked at: base64."""

    @property
    def rate(self) -> float:
        """Answers per second."""
        return self.answered / self.seconds

    @property
    def body(self) -> bytes:
        """The body of one answer, to compare."""
        return base64.b64decode(self.sample)


def start(load: Load) -> "subprocess.Popen[bytes]":
    """Start a client; its figures are had by `heard`."""
    fields = asdict(load) | {"requests": [base64.b64encode(one).decode() for one in load.requests]}
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.callers"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdin is not None
    child.stdin.write(json.dumps(fields).encode())
    child.stdin.close()
    child.stdin = None
    return child


def stop(child: "subprocess.Popen[bytes]") -> None:
    """End its window now; what is on the way is still heard."""
    child.terminate()


def heard(child: "subprocess.Popen[bytes]", timeout: float = 300) -> Heard:
    """Wait for a client's figures; Failed if it has none."""
    try:
        out, err = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        raise processes.Failed(f"the load client: not done after {timeout:g} s") from None
    if child.returncode != 0:
        raise processes.Failed(f"the load client: {err.decode(errors='replace')[-300:]}")
    return Heard(**json.loads(out))


def call(load: Load) -> Heard:
    """Run one client process to its end."""
    return heard(start(load))


def ask(load: Load, timeout: float = 10) -> bytes | None:
    """One request over a connection of its own: the body of its answer, None if it is refused."""
    with socket.create_connection(("127.0.0.1", load.port), timeout) as connection:
        got: bytes | None
        if load.protocol == "http":
            connection.sendall(load.requests[0])
            buffer = b""
            while (got := _body(buffer)) is None:
                buffer += _some(connection)
            return got if buffer[9:12] == b"200" else None
        caller = http2.Caller(load.path, connection.sendall)
        caller.open()
        caller.send(load.requests[0])
        while (got := caller.feed(_some(connection))) is None:
            pass
        return got or None


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(2**16)
    if not data:
        raise ConnectionResetError("the server closed the connection")
    return data


def _body(buffer: bytes) -> bytes | None:
    """The body of an HTTP answer; None until it is whole."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = buffer[:end].lower()
    at = head.find(b"\r\ncontent-length:")
    if at < 0:
        raise http2.Broken(f"an answer without a length: {head!r}")
    stop = head.find(b"\r\n", at + 17)
    whole = end + 4 + int(head[at + 17 : stop if stop >= 0 else end])
    return buffer[end + 4 : whole] if len(buffer) >= whole else None


class _Connection(asyncio.Protocol):
    """One connection; `free` is told when it can take a request."""

    def __init__(self, crowd: "_Crowd") -> None:
        self.crowd = crowd
        self.due = 0.0
        self.busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.write = cast(asyncio.Transport, transport).write

    def connection_lost(self, trouble: Exception | None) -> None:
        self.crowd.lost(trouble)

    def send(self, request: bytes, due: float) -> None:
        """Send a request that was due then."""
        self.due, self.busy = due, True
        self.write(request)


class _Http(_Connection):
    def __init__(self, crowd: "_Crowd") -> None:
        super().__init__(crowd)
        self.buffer = b""

    def data_received(self, data: bytes) -> None:
        buffer = self.buffer + data if self.buffer else data
        body = _body(buffer)
        if body is None:
            self.buffer = buffer
        else:
            self.buffer = b""
            self.crowd.answer(self, buffer[9:12], body)


class _Grpc(_Connection):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.caller = http2.Caller(self.crowd.load.path, self.write)
        self.caller.open()

    def send(self, request: bytes, due: float) -> None:
        self.due, self.busy = due, True
        self.caller.send(request)

    def data_received(self, data: bytes) -> None:
        message = self.caller.feed(data)
        if message is not None:
            self.crowd.answer(self, b"200" if message else b"empty", message)


class _Crowd:
    """All connections of one load, and what they have heard."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.requests = [load.requests[place] for place in load.order] or load.requests
        self.loop = asyncio.get_running_loop()
        self.turn = 0
        self.began = self.end = 0.0
        self.good: list[float] = []
        self.bad: list[float] = []
        self.statuses: dict[str, int] = {}
        self.sample = b""
        self.free: deque[_Connection] = deque()
        self.waiting: deque[float] = deque()
        self.out = 0
        self.over: asyncio.Future[None] = self.loop.create_future()

    async def run(self) -> Heard:
        kind = _Http if self.load.protocol == "http" else _Grpc
        connections = []
        for _ in range(self.load.connections):
            _, one = await self.loop.create_connection(
                lambda: kind(self), "127.0.0.1", self.load.port, family=socket.AF_INET
            )
            connections.append(one)
        now = time.perf_counter()
        self.began = now + self.load.warm
        self.end = self.began + self.load.seconds
        self.free.extend(connections)
        if self.load.rate is None:
            while self.free:
                self._send(self.free.popleft(), time.perf_counter())
        else:
            self._arrivals = self._draw(now)
            self._next = next(self._arrivals)
            self._tick()
        while not self.over.done() and time.perf_counter() < self.end + _PATIENCE:
            await asyncio.wait([self.over], timeout=0.5)
        if self.over.done():
            self.over.result()
        return self._heard()

    def _draw(self, now: float) -> Iterator[float]:
        """Times of arrival: a Poisson process, always the same one."""
        assert self.load.rate is not None
        draw = random.Random(0)
        while True:
            now += draw.expovariate(self.load.rate)
            yield now

    def _tick(self) -> None:
        now = time.perf_counter()
        while self._next <= now and self._next < self.end:
            if self.free:
                self._send(self.free.popleft(), self._next)
            else:
                self.waiting.append(self._next)
            self._next = next(self._arrivals)
        if self._next < self.end:
            # uvloop counts milliseconds: the last of a long pause is waited for by itself.
            self.loop.call_later(max(self._next - now - _TICK, _TICK), self._tick)
        else:
            self._finish()

    def _send(self, connection: _Connection, due: float) -> None:
        request = self.requests[self.turn % len(self.requests)]
        self.turn += 1
        self.out += 1
        try:
            connection.send(request, due)
        except RuntimeError as closed:
            self.lost(closed)

    def answer(self, connection: _Connection, status: bytes, body: bytes) -> None:
        now = time.perf_counter()
        connection.busy = False
        self.out -= 1
        due = connection.due
        counted = now if self.load.rate is None else due
        if self.began <= counted < self.end:
            if status == b"200":
                self.good.append(now - due)
                if not self.sample:
                    self.sample = body
            else:
                self.bad.append(now - due)
                name = status.decode(errors="replace")
                self.statuses[name] = self.statuses.get(name, 0) + 1
        if self.load.rate is None:
            if now < self.end:
                self._send(connection, now)
            else:
                self._finish()
        elif self.waiting:
            self._send(connection, self.waiting.popleft())
        else:
            self.free.append(connection)
            if self._next >= self.end:
                self._finish()

    def lost(self, trouble: Exception | None) -> None:
        if not self.over.done():
            what = f"the server closed a connection: {trouble}"
            self.over.set_exception(processes.Failed(what))

    def stop(self) -> None:
        """End the window now."""
        self.end = min(self.end, time.perf_counter())

    def _finish(self) -> None:
        if not self.out and not self.waiting and not self.over.done():
            self.over.set_result(None)

    def _heard(self) -> Heard:
        if not self.over.done():
            self.over.set_result(None)
        good, bad = sorted(self.good), sorted(self.bad)
        return Heard(
            seconds=self.end - self.began,
            answered=len(good),
            refused=len(bad),
            late=self.out + len(self.waiting),
            p50=figures.quantile(good, 0.5),
            p99=figures.quantile(good, 0.99),
            most=good[-1] if good else 0.0,
            refused_p99=figures.quantile(bad, 0.99),
            statuses=self.statuses,
            sample=base64.b64encode(self.sample).decode(),
        )


async def _main(load: Load) -> Heard:
    crowd = _Crowd(load)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, crowd.stop)
    return await crowd.run()


def read(text: str) -> Load:
    """A load as `start` wrote it."""
    fields = json.loads(text)
    fields["order"] = tuple(fields["order"])
    fields["requests"] = tuple(base64.b64decode(one) for one in fields["requests"])
    return Load(**fields)


if __name__ == "__main__":
    try:
        import uvloop

        _run = uvloop.run
    except ImportError:
        _run = asyncio.run
    print(json.dumps(asdict(_run(_main(read(sys.stdin.read()))))))
