"""One model, four client processes, one call on the way in each: copies, `sublet.connect`, gRPC."""

import contextlib
import json
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import callers, figures, processes, servers
from bench.report import Bar, Result, Table
from bench.sandbox import PROGRAMS, ROOT, Sandbox, sandbox

_MiB = 2**20
_CLIENTS = 4
_ROUNDS = 3
_SECONDS = 2.0
_LONGEST = 60.0
SMALL, LARGE = "mlp", "images"
TITLES = {
    "copy": "a copy of the model in each client",
    "connect": "sublet.connect",
    "buffer": "sublet.connect, into its buffer()",
    "grpc": "gRPC, raw bytes, grpc.aio server",
    "served": "the same gRPC client, sublet serve",
}


@dataclass(frozen=True)
class Calls:
    """What four clients did in one round."""

    rate: Mapping[str, float]
    """Calls per second of all, by model."""
    p50: Mapping[str, float]
    p99: Mapping[str, float]
    pss: int
    """Bytes of the clients, and of all that serves them."""


Rounds = Sequence[Mapping[str, Calls]]


def measure(quick: bool) -> Result:
    """Round after round, the ways in turn, each alone on the machine."""
    rounds: list[dict[str, Calls]] = []
    failures: dict[str, None] = {}
    seconds = 0.4 if quick else _SECONDS
    with sandbox() as kept:
        models = servers.export(kept, SMALL, LARGE)
        for number in range(1 if quick else _ROUNDS):
            rounds.append({})
            groups = (("copy",), ("connect", "buffer", "served"), ("grpc",))
            for ways in groups if number % 2 == 0 else reversed(groups):
                try:
                    rounds[-1].update(_group(ways, models, seconds))
                except (processes.Failed, OSError) as trouble:
                    failures[f"{TITLES[ways[0]]}: {trouble}"] = None
    return result(rounds, tuple(failures))


def result(rounds: Rounds, failures: tuple[str, ...] = ()) -> Result:
    """The table and the bars of these rounds."""
    rows = []
    for way, title in TITLES.items():
        several = [by[way] for by in rounds if way in by]
        if not several:
            continue
        cells: list[str] = []
        for model in (SMALL, LARGE):
            rate = figures.median([one.rate[model] for one in several])
            p50, p99 = (
                figures.significant(figures.median([q[model] for q in many]) * 1000)
                for many in ([one.p50 for one in several], [one.p99 for one in several])
            )
            cells += [f"{rate:.0f}", f"{p50} / {p99}"]
        pss = figures.median([one.pss for one in several]) / _MiB
        rows.append((title, *cells, f"{pss:.0f}"))
    table = Table(
        "four client processes, one call on the way each",
        ("way", "small/s", "p50 / p99", "large/s", "p50 / p99", "PSS"),
        tuple(rows),
        (
            "small: a row of 784 floats to the MLP 784-512-512-10; large: 32 images of 224x224x3,"
            " 19 MB, to their mean colour. Milliseconds. PSS: MiB of the clients and of all that"
            " serves them, the broker and its nursery too.",
            "buffer(): the input lies in shared memory and is not copied again; a copy of the model"
            " gets its input by tf.constant, which copies it.",
        ),
    )
    bars = [
        *_bar(rounds, "connect", "copy", SMALL, "small calls, of a copy in each", 0.9),
        *_bar(rounds, "connect", "copy", LARGE, "large calls, of a copy in each", 0.85),
        *_bar(rounds, "buffer", "copy", LARGE, "large calls from buffer(), of a copy", 0.85),
        *_memory(rounds),
        *_bar(rounds, "connect", "grpc", SMALL, "small calls, of gRPC", 3.5),
        *_bar(rounds, "connect", "grpc", LARGE, "large calls, of gRPC", 6),
    ]
    samples = {"rounds": [{way: asdict(one) for way, one in by.items()} for by in rounds]}
    return Result("connect", (table,), tuple(bars), samples, failures)


def _bar(
    rounds: Rounds, ours: str, theirs: str, model: str, name: str, least: float
) -> Iterator[Bar]:
    pairs = [(by[ours], by[theirs]) for by in rounds if ours in by and theirs in by]
    if pairs:
        ratio = figures.paired_ratio(
            [a.rate[model] for a, _ in pairs], [b.rate[model] for _, b in pairs]
        )
        yield Bar(name, ratio, least, "at least")


def _memory(rounds: Rounds) -> Iterator[Bar]:
    pairs = [(by["connect"], by["copy"]) for by in rounds if "connect" in by and "copy" in by]
    if pairs:
        ratio = figures.paired_ratio([a.pss for a, _ in pairs], [b.pss for _, b in pairs])
        yield Bar("memory, of copies", ratio, 0.55, "at most")


def _group(ways: Sequence[str], models: Path, seconds: float) -> dict[str, Calls]:
    """The ways that one server serves, or copies that need none."""
    paths = {name: models / name for name in (SMALL, LARGE)}
    row = servers.example(models / SMALL).row

    def first(http: int, grpc: int) -> callers.Load:
        return servers.predict_call(grpc, [SMALL], row)

    results = {}
    with sandbox() as home, contextlib.ExitStack() as held:
        server = None
        if ways[0] == "connect":
            server = held.enter_context(servers.sublet(home, paths, first))
        elif ways[0] == "grpc":
            server = held.enter_context(servers.bare_grpc(home, paths, first))
        for way in ways:
            where = str(server.grpc) if server is not None else str(models)
            results[way] = _calls("grpc" if way == "served" else way, where, server, home, seconds)
            print(f"  {TITLES[way]}: {results[way].rate}", file=sys.stderr)
    return results


def _calls(
    way: str, where: str, server: servers.Server | None, home: Sandbox, seconds: float
) -> Calls:
    env = {**home.env, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    with home.log.open("ab") as log, contextlib.ExitStack() as held:
        clients = [
            held.enter_context(
                subprocess.Popen(
                    [sys.executable, PROGRAMS / "caller.py", way, where],
                    env=env,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
            )
            for _ in range(_CLIENTS)
        ]
        for client in clients:
            held.callback(client.kill)
        for client in clients:
            _line(client, home)
        rate, p50, p99 = {}, {}, {}
        for model in (SMALL, LARGE):
            for client in clients:
                assert client.stdin is not None
                print(f"{model} {seconds}", file=client.stdin, flush=True)
            each = [json.loads(_line(client, home)) for client in clients]
            rate[model] = sum(len(one) / sum(one) for one in each)
            latencies = sorted(one for several in each for one in several)
            p50[model] = figures.quantile(latencies, 0.5)
            p99[model] = figures.quantile(latencies, 0.99)
        pss = sum(processes.pss(client.pid) for client in clients)
        return Calls(rate, p50, p99, pss + (server.pss() if server is not None else 0))


def _line(client: "subprocess.Popen[str]", home: Sandbox) -> str:
    assert client.stdout is not None
    # A line is all that a client says at a time, so none is hidden in the buffer.
    heard, _, _ = select.select([client.stdout], [], [], _LONGEST)
    line = client.stdout.readline() if heard else ""
    if not heard:
        raise processes.Failed(f"a client says nothing for {_LONGEST:g} s")
    if not line:
        raise processes.Failed(f"a client ended: {processes.tail(home.log)}")
    return line
