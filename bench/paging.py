"""Fifty models of which eight fit: a trace of twenty minutes, replayed faster.

Requests are drawn before: times of a Poisson process, models by Zipf's law. The same trace goes to
a server with room for eight, to one with room for all, and part of it to a program that loads a
model for each request and drops it, which is what people do who cannot keep them all.
"""

import contextlib
import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import callers, figures, processes, servers, wire
from bench.report import Bar, Result, Table
from bench.sandbox import PROGRAMS, ROOT, SUBLET, Sandbox, sandbox

_MiB = 2**20
_MODELS, _FIT = 50, 8
_MINUTES = 20.0
_RATE = 1.5
"""Requests per second of trace time."""
_SPEED = 15.0
"""Seconds of the trace in one second: its loads then keep about half a core busy."""
_EXPONENT = 1.0
_EACH = 40
"""Requests that the program which loads for each gets: each takes as long as it takes."""
_LOADS = "sublet_model_loads_total"
PAGED, ALL, EACH = "some fit", "all are loaded", "load for each request"


@dataclass(frozen=True)
class Replay:
    """One way, and how the trace went."""

    answered: int
    failed: int
    p50: float
    p99: float
    loads: int
    held: int
    """Models in memory at the end."""
    pss: int


def measure(quick: bool) -> Result:
    """The trace through both servers, a part of it through the program."""
    replays: dict[str, Replay] = {}
    failures: list[str] = []
    count, fit = (12, 3) if quick else (_MODELS, _FIT)
    minutes = 1.0 if quick else _MINUTES
    order = trace(count, int(_RATE * minutes * 60))
    with sandbox() as kept:
        models = _models(servers.export(kept, "paged") / "paged", count)
        room = _room(kept, models["m0"])
        print(f"  one model takes {room / _MiB:.1f} MiB", file=sys.stderr)
        # A part of the memory is kept for what models compute.
        for name, memory in ((PAGED, room * fit * 8 // 7), (ALL, None)):
            try:
                replays[name] = _replay(models, order, memory, minutes)
            except (processes.Failed, OSError) as trouble:
                failures.append(f"{name}: {trouble}")
        replays[EACH] = _each(kept, models, order[: 5 if quick else _EACH])
    return result(replays, count, fit, minutes, tuple(failures))


def trace(models: int, requests: int) -> tuple[int, ...]:
    """Which model each request asks for: by Zipf's law, always the same."""
    weights = [1 / (rank + 1) ** _EXPONENT for rank in range(models)]
    return tuple(random.Random(0).choices(range(models), weights, k=requests))


def result(
    replays: Mapping[str, Replay],
    count: int,
    fit: int,
    minutes: float,
    failures: tuple[str, ...] = (),
) -> Result:
    """The table and the bars of the replays."""
    rows = tuple(
        (
            f"{fit} fit" if name == PAGED else name,
            str(one.answered),
            str(one.failed),
            f"{_cold(one) * 100:.0f} %",
            str(one.held),
            figures.significant(one.p50 * 1000),
            figures.significant(one.p99 * 1000),
            f"{one.pss / _MiB:.0f}",
        )
        for name, one in replays.items()
    )
    table = Table(
        f"{count} models, Zipf popularity, {minutes:g} minutes of trace",
        ("", "answered", "failed", "cold", "held", "p50", "p99", "PSS"),
        rows,
        (
            f"{_RATE:g} requests per second of trace time, replayed {_SPEED:g} times faster. cold:"
            " loads per request. held: models in memory at the end. p50, p99: in ms. PSS: MiB"
            " of all processes at the end.",
            f"{EACH}: a part of the trace, one request after the other, in one process: none waits"
            " for another there, so this is the best that this way can do.",
        ),
    )
    bars = []
    if PAGED in replays:
        bars.append(Bar("failed requests", replays[PAGED].failed, 0, "at most", "requests"))
    samples = {name: dataclasses.asdict(one) for name, one in replays.items()}
    return Result("paging", (table,), tuple(bars), samples, failures)


def _cold(one: Replay) -> float:
    return one.loads / max(one.answered + one.failed, 1)


def _models(source: Path, count: int) -> dict[str, Path]:
    """So many of them: the same bytes on the disk, a model each for the server."""
    models = {}
    for number in range(count):
        place = source.with_name(f"m{number}")
        shutil.copytree(source, place, copy_function=os.link)
        models[f"m{number}"] = place
    return models


def _room(home: Sandbox, model: Path) -> int:
    """Bytes that one model takes in the server's books."""
    row = servers.example(model).row

    def first(http: int, grpc: int) -> callers.Load:
        return servers.predict_load(http, ["m0"], row)

    with servers.sublet(home, {"m0": model}, first) as server:
        room = servers.metric(server, "sublet_model_memory_bytes")
    if not room:
        raise processes.Failed("the server does not say what a model takes")
    return int(room)


def _replay(
    models: Mapping[str, Path], order: Sequence[int], memory: int | None, minutes: float
) -> Replay:
    example = servers.example(models["m0"])

    def first(http: int, grpc: int) -> callers.Load:
        return servers.predict_load(http, ["m0"], example.row)

    options = () if memory is None else ("--memory", f"{memory // _MiB}MiB")
    with sandbox() as home, servers.sublet(home, models, first, options, timeout=120) as server:
        loads = servers.metric(server, _LOADS)
        heard = callers.call(
            callers.Load(
                "http",
                server.http,
                tuple(wire.predict(name, example.row) for name in models),
                order=tuple(order),
                connections=64,
                warm=0.0,
                seconds=minutes * 60 / _SPEED,
                rate=_RATE * _SPEED,
            )
        )
        print(f"  {heard.answered} answered, failed {heard.statuses}", file=sys.stderr)
        return Replay(
            heard.answered,
            heard.refused + heard.late,
            heard.p50,
            heard.p99,
            int(servers.metric(server, _LOADS) - loads),
            _held(home),
            server.pss(),
        )


def _held(home: Sandbox) -> int:
    """Models that are in memory now."""
    ran = subprocess.run(
        [SUBLET, "models", "--json"], env=home.env, capture_output=True, timeout=30, check=True
    )
    return sum(row["state"] == "loaded" for row in json.loads(ran.stdout)["models"])


def _each(home: Sandbox, models: Mapping[str, Path], order: Sequence[int]) -> Replay:
    paths = [str(models[f"m{number}"] / "1") for number in order]
    with home.log.open("ab") as log, contextlib.ExitStack() as held:
        child = held.enter_context(
            subprocess.Popen(
                [sys.executable, PROGRAMS / "each.py", *paths],
                env={**home.env, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        )
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line:
            raise processes.Failed(f"{EACH}: {processes.tail(home.log)}")
        weight = processes.pss(child.pid)
    latencies = sorted(json.loads(line))
    p50, p99 = (figures.quantile(latencies, share) for share in (0.5, 0.99))
    return Replay(len(latencies), 0, p50, p99, len(latencies), 1, weight)
