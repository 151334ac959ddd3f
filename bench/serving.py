"""One row per request over 32 connections: `sublet serve` beside the best peer and the limits.

Each server is started anew in each round and alone, so that its memory is its own; the rounds go
through the servers in turn, so that what drifts falls on all of them.
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import callers, figures, processes, servers, wire
from bench.report import Bar, Result, Table
from bench.sandbox import PROGRAMS, ROOT, Sandbox, sandbox

_MiB = 2**20
_LARGEST = 32
_MODELS = ("m0", "m1", "m2", "m3")
_ROUNDS = 3
_SECONDS = 1.8

Open = Callable[..., AbstractContextManager[servers.Server]]
Make = Callable[[int, Sequence[str], Sequence[float]], callers.Load]


@dataclass(frozen=True)
class Way:
    """One server, and what is asked of it."""

    key: str
    title: str
    open: Open
    rest: Make | None = None
    grpc: Make | None = None


WAYS = (
    Way("sublet", "sublet serve", servers.sublet, servers.predict_load, servers.predict_call),
    Way("pytriton", "PyTriton", servers.pytriton, servers.infer_load, servers.infer_call),
    Way("http", "limit: bare httptools", servers.bare_http, rest=servers.predict_load),
    Way("grpc", "limit: bare grpc.aio", servers.bare_grpc, grpc=servers.predict_call),
)
V2 = "sublet v2"
"""The very requests that PyTriton gets, to ours."""
KINDS = ("rest 1", "rest 4", "grpc 1", "grpc 4")
"""Protocol and number of models."""


@dataclass(frozen=True)
class Stay:
    """The figures of one server in one round."""

    heard: Mapping[str, callers.Heard]
    """What clients saw, by kind of call."""
    pss: int
    started: float


Rounds = Sequence[Mapping[str, Stay]]
"""By key of the way; one that failed in a round is not in it."""


def measure(quick: bool) -> Result:
    """Round after round, the servers in turn."""
    rounds: list[dict[str, Stay]] = []
    direct: list[float] = []
    failures: dict[str, None] = {}
    seconds = 0.5 if quick else _SECONDS
    with sandbox() as home:
        path = servers.export(home, "mlp") / "mlp"
        for number in range(1 if quick else _ROUNDS):
            rounds.append({})
            for way in WAYS if number % 2 == 0 else reversed(WAYS):
                try:
                    stay = _stay(way, path, seconds)
                except (processes.Failed, OSError) as trouble:
                    failures[f"{way.title}: {trouble}"] = None
                    continue
                rounds[-1][way.key] = stay
                _tell(way.title, stay)
            try:
                direct.append(_direct(home, path, seconds))
            except processes.Failed as trouble:
                failures[f"direct call: {trouble}"] = None
    return result(rounds, direct, tuple(failures))


def result(rounds: Rounds, direct: Sequence[float], failures: tuple[str, ...] = ()) -> Result:
    """Tables and bars for these rounds."""
    tables = [
        _table(rounds, direct, "rest", "REST, JSON"),
        _table(rounds, direct, "grpc", "gRPC"),
    ]
    bars: list[Bar] = []
    for kind, name in zip(
        KINDS, ("REST, 1 model", "REST, 4 models", "gRPC, 1", "gRPC, 4"), strict=True
    ):
        least = 2.5 if kind.startswith("rest") else 1
        bars += _beside(rounds, kind, "pytriton", f"{name}: of PyTriton", least)
        limit = "http" if kind.startswith("rest") else "grpc"
        least = 0.75 if limit == "http" else 1
        bars += _beside(rounds, kind, limit, f"{name}: of the bare server", least)
        if kind.startswith("rest"):
            bars += _calmer(rounds, kind, name)
    samples = {"rounds": [_plain(by) for by in rounds], "direct": list(direct)}
    return Result("serving", tuple(tables), tuple(bars), samples, failures)


def _plain(by: Mapping[str, Stay]) -> dict[str, Any]:
    """A round without its sample answers."""
    stays = {key: dataclasses.asdict(stay) for key, stay in by.items()}
    for stay in stays.values():
        for heard in stay["heard"].values():
            del heard["sample"]
    return stays


def _stay(way: Way, path: Path, seconds: float) -> Stay:
    """Start it, ask all that it can answer, weigh it, stop it."""
    example = servers.example(path)
    models = dict.fromkeys(_MODELS, path)

    def first(http: int, grpc: int) -> callers.Load:
        if way.rest is not None:
            return way.rest(http, _MODELS[-1:], example.row)
        assert way.grpc is not None
        return way.grpc(grpc, _MODELS[-1:], example.row)

    with sandbox() as home, way.open(home, models, first) as server:
        heard = {}
        for kind, load in _loads(way, server, example.row):
            one = callers.call(dataclasses.replace(load, seconds=seconds))
            _check(way.title, kind, one, example.expected)
            heard[kind] = one
        return Stay(heard, server.pss(), server.started)


def _loads(
    way: Way, server: servers.Server, row: Sequence[float]
) -> Iterator[tuple[str, callers.Load]]:
    for count in (1, 4):
        if way.rest is not None:
            yield f"rest {count}", way.rest(server.http, _MODELS[:count], row)
        if way.grpc is not None:
            yield f"grpc {count}", way.grpc(server.grpc, _MODELS[:count], row)
    if way.key == "sublet":
        yield f"{V2} rest 1", servers.infer_load(server.http, _MODELS[:1], row)
        yield f"{V2} grpc 1", servers.infer_call(server.grpc, _MODELS[:1], row)


def _check(title: str, kind: str, heard: callers.Heard, expected: Sequence[float]) -> None:
    """A figure counts only if the answers are right, all of them are there and none was refused."""
    if heard.refused or heard.late or not heard.answered:
        raise processes.Failed(
            f"{kind}: {heard.answered} answered, {heard.refused} refused {heard.statuses}, "
            f"{heard.late} without an answer"
        )
    if "grpc" in kind:
        right = wire.holds(heard.body, expected)
    else:
        right = _close(_numbers(json.loads(heard.body)), expected)
    if not right:
        raise processes.Failed(f"{kind}: {title} gives another answer: {heard.body[:200]!r}")


def _numbers(answer: dict[str, Any]) -> list[float]:
    rest = "predictions" in answer
    found: list[float] = answer["predictions"][0] if rest else answer["outputs"][0]["data"]
    return found


def _close(values: Sequence[float], expected: Sequence[float]) -> bool:
    return len(values) == len(expected) and all(
        abs(a - b) < 1e-4 for a, b in zip(values, expected, strict=True)
    )


def _direct(home: Sandbox, path: Path, seconds: float) -> float:
    """Rows per second of full batches in one process, without any server."""
    output = home.directory / "direct"
    words: list[str | Path] = [sys.executable, PROGRAMS / "direct.py", path / "1", str(seconds)]
    env = {**home.env, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    processes.run([*words, output], env, home.log)
    return float(output.read_text())


def _rates(several: Sequence[Stay], kind: str) -> list[float]:
    return [one.heard[kind].rate for one in several if kind in one.heard]


def _table(rounds: Rounds, direct: Sequence[float], protocol: str, title: str) -> Table:
    rows = []
    one, four = f"{protocol} 1", f"{protocol} 4"
    limit = figures.median(direct) if direct else None
    named = [(way.title, way.key, one, four) for way in WAYS]
    named.insert(1, ("  the same as PyTriton's", "sublet", f"{V2} {one}", ""))
    for name, key, first, second in named:
        several = [by[key] for by in rounds if key in by]
        rates = _rates(several, first)
        if not rates:
            continue
        heards = [stay.heard[first] for stay in several]
        fours = _rates(several, second)
        rows.append(
            (
                name,
                f"{figures.median(rates):.0f}",
                f"{figures.spread(rates) * 100:.0f} %",
                *(
                    figures.significant(figures.median([getattr(h, q) for h in heards]) * 1000)
                    for q in ("p50", "p99")
                ),
                f"{figures.median(fours):.0f}" if fours else "–",
                f"{figures.median(rates) / limit * 100:.0f} %" if limit else "–",
                f"{figures.median([stay.pss for stay in several]) / _MiB:.0f}",
                figures.significant(figures.median([stay.started for stay in several])),
            )
        )
    notes = [
        "1, 4: requests per second with one and with four models; p50, p99: milliseconds, one"
        " model. start: seconds to the first answer. PSS: MiB of all processes, four models.",
    ]
    if limit:
        notes.append(
            f"direct: share of {limit:.0f} rows per second, which full batches of {_LARGEST} reach"
            " in one process on all cores, with no server and no client beside it."
        )
    return Table(
        f"{title}: MLP 784-512-512-10, one row, 32 connections, largest batch {_LARGEST}",
        ("server", "1", "±", "p50", "p99", "4", "direct", "PSS", "start"),
        tuple(rows),
        tuple(notes),
    )


def _beside(rounds: Rounds, kind: str, key: str, name: str, least: float) -> Iterator[Bar]:
    pairs = _pairs(rounds, kind, key)
    if pairs:
        ratio = figures.paired_ratio([a.rate for a, _ in pairs], [b.rate for _, b in pairs])
        yield Bar(name, ratio, least, "at least")


def _calmer(rounds: Rounds, kind: str, name: str) -> Iterator[Bar]:
    pairs = _pairs(rounds, kind, "pytriton")
    if pairs:
        ratio = figures.paired_ratio([a.p99 for a, _ in pairs], [b.p99 for _, b in pairs])
        yield Bar(f"{name}: p99, of PyTriton's", ratio, 1, "at most")


def _pairs(rounds: Rounds, kind: str, key: str) -> list[tuple[callers.Heard, callers.Heard]]:
    """Ours and theirs, round by round, as far as both have them."""
    return [
        (by["sublet"].heard[kind], by[key].heard[kind])
        for by in rounds
        if "sublet" in by and key in by and kind in by[key].heard
    ]


def _tell(title: str, stay: Stay) -> None:
    rates = ", ".join(f"{kind} {heard.rate:.0f}/s" for kind, heard in stay.heard.items())
    print(f"  {title}: {rates}", file=sys.stderr)
