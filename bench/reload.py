"""Two hundred reloads under load: each replaces the served version, and clients call on."""

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import callers, figures, processes, servers, wire
from bench.report import Bar, Result, Table
from bench.sandbox import Sandbox, sandbox

_MiB = 2**20
_TIMES = 200
_LOOKS = 40
_CONNECTIONS = 4
MODEL = "mlp"


def measure(quick: bool) -> Result:
    """Change versions to and fro while connections send as fast as they are answered."""
    times = 10 if quick else _TIMES
    with sandbox() as home:
        path = servers.export(home, MODEL) / MODEL
        (path / "2").mkdir()
        _copy(path / "1", path / "2")
        row = servers.example(path).row

        def first(http: int, grpc: int) -> callers.Load:
            return servers.predict_load(http, [MODEL], row)

        unix = home.directory / "grpc.sock"
        options = ["--allow_reload", "--grpc_socket_path", str(unix)]
        with servers.sublet(home, {MODEL: path}, first, options) as server:
            # Versions 1 and 2 take turns from here on.
            _reload(server, unix, path, 1)
            engine = _engine(home)
            weights = [processes.pss(engine)]
            load = servers.predict_load(server.http, [MODEL], row)
            client = callers.start(
                dataclasses.replace(load, connections=_CONNECTIONS, warm=0.0, seconds=600.0)
            )
            try:
                took = []
                for number in range(times):
                    began = time.monotonic()
                    _reload(server, unix, path, 2 - number % 2)
                    took.append(time.monotonic() - began)
                    if (number + 1) % max(times // _LOOKS, 1) == 0:
                        weights.append(processes.pss(engine))
            finally:
                callers.stop(client)
            heard = callers.heard(client)
            if _engine(home) != engine:
                raise processes.Failed("the engine was replaced meanwhile")
    print(f"  {heard.answered} answered, {heard.refused} failed {heard.statuses}", file=sys.stderr)
    return result(times, took, weights, heard)


def result(
    times: int, took: Sequence[float], weights: Sequence[int], heard: callers.Heard
) -> Result:
    """The table and the bars of one run."""
    failed = heard.refused + heard.late
    growth = growth_of(weights)
    table = Table(
        "reloads under load: MLP 784-512-512-10, four connections",
        ("what", "figure"),
        (
            ("reloads", str(times)),
            ("one reload, median", figures.seconds(figures.median(took))),
            ("one reload, longest", figures.seconds(max(took))),
            ("requests answered", str(heard.answered)),
            ("requests failed", str(failed)),
            (
                "p50 / p99 / most",
                " / ".join(figures.seconds(one) for one in (heard.p50, heard.p99, heard.most)),
            ),
            ("engine before, PSS", f"{weights[0] / _MiB:.0f} MiB"),
            ("engine from a fifth on, PSS", f"{_early(weights) / _MiB:.0f} MiB"),
            ("engine at the end, PSS", f"{_late(weights) / _MiB:.0f} MiB"),
        ),
        ("From a fifth on, at the end: medians of five looks.",),
    )
    bars = [
        Bar(f"{times} reloads: failed requests", failed, 0, "at most", "requests"),
        Bar(f"{times} reloads: growth of the engine", growth * 100, 5, "at most", "%"),
    ]
    samples: dict[str, Any] = {
        "took": list(took),
        "weights": list(weights),
        "answered": heard.answered,
        "failed": failed,
        "statuses": heard.statuses,
    }
    return Result("reload", (table,), tuple(bars), samples)


def growth_of(weights: Sequence[int]) -> float:
    """The middle of the last five looks beside that of five when a fifth of the reloads was done:
    what is taken once, by the first loads, is no growth."""
    return _late(weights) / _early(weights) - 1


def _early(weights: Sequence[int]) -> float:
    start = len(weights) // 5
    return figures.median(weights[start : start + 5])


def _late(weights: Sequence[int]) -> float:
    return figures.median(weights[-5:])


def _reload(server: servers.Server, unix: Path, path: Path, version: int) -> None:
    """Ask for this version only; returns when it is served."""
    import grpc

    with grpc.insecure_channel(f"unix:{unix}") as channel:
        message = wire.reload_message(MODEL, str(path), version)
        channel.unary_unary(wire.RELOAD)(message, timeout=60)
    processes.wait_for(lambda: _served(server, version), f"version {version}", 60, every=0.005)


def _served(server: servers.Server, version: int) -> bool:
    path = f"/v1/models/{MODEL}/versions/{version}"
    body = callers.ask(callers.Load("http", server.http, (wire.get(path),)))
    return body is not None and b'"AVAILABLE"' in body


def _engine(home: Sandbox) -> int:
    """The process that holds the models."""
    found = [
        one.pid
        for one in processes.tree(home.status()["pid"])
        if "sublet.engine.engine" in " ".join(one.cmdline())
    ]
    if len(found) != 1:
        raise processes.Failed(f"{len(found)} engines")
    return found[0]


def _copy(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir()
        else:
            place.write_bytes(path.read_bytes())
