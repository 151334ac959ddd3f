"""The model servers that are measured: how each is started, found ready, weighed and stopped."""

import contextlib
import json
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import callers, peers, processes, wire
from bench.sandbox import PROGRAMS, ROOT, SUBLET, Sandbox

INPUT = "x"
_MiB = 2**20
_BATCHING = """\
max_batch_size {{ value: {0} }}
batch_timeout_micros {{ value: 0 }}
max_enqueued_batches {{ value: {1} }}
"""


@dataclass(frozen=True)
class Server:
    """One that runs and has answered."""

    http: int
    grpc: int
    pids: Callable[[], set[int]]
    started: float
    """Seconds until the first answer."""

    def pss(self) -> int:
        """Bytes of all its processes."""
        return sum(map(processes.pss, self.pids()))


@dataclass(frozen=True)
class Example:
    """A row of a model, and its right answer."""

    row: tuple[float, ...]
    expected: tuple[float, ...]


def export(home: Sandbox, *kinds: str) -> Path:
    """Write these kinds of models; returns the directory that holds them by name."""
    place = home.directory / "exports"
    env = {**home.env, "PYTHONPATH": str(ROOT)}
    processes.run([sys.executable, PROGRAMS / "exports.py", place, *kinds], env, home.log)
    return place


def example(model: Path) -> Example:
    """What was written beside a model."""
    facts = json.loads((model / "example.json").read_text())
    return Example(tuple(facts.get("row", ())), tuple(facts["expected"]))


@contextlib.contextmanager
def sublet(
    home: Sandbox,
    models: Mapping[str, Path],
    first: Callable[[int, int], callers.Load],
    options: Sequence[str | Path] = (),
    largest: int = 32,
    enqueued: int = 16,
    timeout: float = 60,
) -> Iterator[Server]:
    """`sublet serve` with these models; `first` makes the request that must succeed."""
    config = home.directory / "models.config"
    entries = "".join(
        f'  config {{ name: "{name}" base_path: "{path}" model_platform: "tensorflow" }}\n'
        for name, path in models.items()
    )
    config.write_text(f"model_config_list {{\n{entries}}}\n")
    batching = home.directory / "batching.config"
    batching.write_text(_BATCHING.format(largest, enqueued))
    http, grpc = ports(2)
    words: list[str | Path] = [SUBLET, "serve", "--model_config_file", config]
    words += ["--rest_api_port", str(http), "--port", str(grpc)]
    words += ["--enable_batching", "--batching_parameters_file", batching, *options]

    def pids() -> set[int]:
        broker = home.status()["pid"]
        return {one.pid for root in (child.pid, broker) for one in processes.tree(root)}

    began = time.monotonic()
    child = processes.start(words, home.env, home.log)
    with _ended(child):
        _ready(child, first(http, grpc), home.log, timeout)
        yield Server(http, grpc, pids, time.monotonic() - began)


@contextlib.contextmanager
def pytriton(
    home: Sandbox, models: Mapping[str, Path], first: Callable[[int, int], callers.Load]
) -> Iterator[Server]:
    """PyTriton with dynamic batching; skipped with its reason where it cannot be installed."""
    python = peers.pytriton()
    http, grpc = ports(2)
    words: list[str | Path] = [
        python,
        PROGRAMS / "triton.py",
        str(http),
        str(grpc),
        *_newest(models),
    ]
    with _program(home, words, first(http, grpc), (http, grpc)) as server:
        yield server


@contextlib.contextmanager
def bare_http(
    home: Sandbox, models: Mapping[str, Path], first: Callable[[int, int], callers.Load]
) -> Iterator[Server]:
    """A bare HTTP server: the limit for REST."""
    (http,) = ports(1)
    words: list[str | Path] = [
        sys.executable,
        PROGRAMS / "bare_http.py",
        str(http),
        *_newest(models),
    ]
    with _program(home, words, first(http, 0), (http, 0)) as server:
        yield server


@contextlib.contextmanager
def bare_grpc(
    home: Sandbox, models: Mapping[str, Path], first: Callable[[int, int], callers.Load]
) -> Iterator[Server]:
    """A bare `grpc.aio` server: the limit for gRPC."""
    (grpc,) = ports(1)
    words: list[str | Path] = [
        sys.executable,
        PROGRAMS / "bare_grpc.py",
        str(grpc),
        *_newest(models),
    ]
    with _program(home, words, first(0, grpc), (0, grpc)) as server:
        yield server


def ports(count: int) -> list[int]:
    """Ports that nobody uses now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def metric(server: Server, name: str) -> float:
    """One of the server's metrics, summed over all its labels."""
    load = callers.Load("http", server.http, (wire.get("/monitoring/prometheus/metrics"),))
    text = (callers.ask(load) or b"").decode()
    lines = [line.split() for line in text.splitlines() if line.startswith(name)]
    return sum(float(words[-1]) for words in lines)


def predict_load(port: int, models: Sequence[str], row: Sequence[float]) -> callers.Load:
    """TensorFlow Serving's REST, connection after connection the next model."""
    return callers.Load("http", port, tuple(wire.predict(model, row) for model in models))


def infer_load(port: int, models: Sequence[str], row: Sequence[float]) -> callers.Load:
    """The Open Inference Protocol, JSON."""
    return callers.Load("http", port, tuple(wire.infer(model, INPUT, row) for model in models))


def predict_call(port: int, models: Sequence[str], row: Sequence[float]) -> callers.Load:
    """TensorFlow Serving's gRPC."""
    return _grpc(port, models, row, wire.predict_message, wire.PREDICT)


def infer_call(port: int, models: Sequence[str], row: Sequence[float]) -> callers.Load:
    """The Open Inference Protocol, gRPC."""
    return _grpc(port, models, row, wire.infer_message, wire.INFER)


def _grpc(
    port: int,
    models: Sequence[str],
    row: Sequence[float],
    message: Callable[[str, str, Sequence[int], bytes], bytes],
    path: str,
) -> callers.Load:
    content = wire.floats(row)
    requests = (wire.framed(message(model, INPUT, (1, len(row)), content)) for model in models)
    return callers.Load("grpc", port, tuple(requests), path=path)


@contextlib.contextmanager
def _program(
    home: Sandbox, words: Sequence[str | Path], first: callers.Load, at: tuple[int, int]
) -> Iterator[Server]:
    env = {**home.env, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    began = time.monotonic()
    child = processes.start(words, env, home.log)
    with _ended(child):
        _ready(child, first, home.log, 60)
        took = time.monotonic() - began
        yield Server(*at, lambda: {one.pid for one in processes.tree(child.pid)}, took)


def _newest(models: Mapping[str, Path]) -> list[str]:
    return [f"{name}={path / '1'}" for name, path in models.items()]


def _ready(child: "processes.Child", first: callers.Load, log: Path, timeout: float) -> None:
    def answers() -> bool:
        if child.poll() is not None:
            raise processes.Failed(f"ended with {child.returncode}: {processes.tail(log)}")
        with contextlib.suppress(OSError):
            return callers.ask(first) is not None
        return False

    processes.wait_for(answers, "the first answer", timeout)


@contextlib.contextmanager
def _ended(child: "processes.Child") -> Iterator[None]:
    """SIGTERM at the dedent, then whatever of its tree is left is killed."""
    try:
        yield
    finally:
        tree = processes.tree(child.pid)[1:]
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
        try:
            child.wait(15)
        except processes.Expired:
            child.kill()
            child.wait()
        processes.kill(tree)
