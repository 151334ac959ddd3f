"""A server that is asked for more than it can do: who waits, who is refused, and how soon.

Both models take milliseconds for one row and hardly more for a batch, as on an accelerator, so that
ten times the capacity is a rate that a client on the same machine can send.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench import callers, figures, servers
from bench.report import Bar, Result, Table
from bench.sandbox import sandbox

_LARGEST, _ENQUEUED = 2, 8
_QUIET = 10.0
_FLOOD, _OVERLOAD = 10.0, 5.0
_ROUNDS = 5
_FULL = _LARGEST * (_ENQUEUED + 1)
"""Connections that fill the queue and the batch that runs, so that hardly anybody is refused."""
_CROWD = 128
FLOODED, OTHER = "flooded", "other"
ALONE, BESIDE = "alone", "beside the flood"


@dataclass(frozen=True)
class Round:
    """What was heard in one round."""

    peak: callers.Heard
    """As many connections as there is room for, that send as fast as they are answered."""
    full: callers.Heard
    """The rate of the peak, whether it keeps up or not."""
    overload: callers.Heard
    flood: callers.Heard
    other: Mapping[str, callers.Heard]
    """The other model, alone and beside the flood."""


def measure(quick: bool) -> Result:
    """One server; the situations in turn, round after round."""
    long, short = (1.0, 0.5) if quick else (15.0, 4.0)
    rounds = []
    with sandbox() as home:
        path = servers.export(home, "wide") / "wide"
        row = servers.example(path).row

        def first(http: int, grpc: int) -> callers.Load:
            return servers.predict_load(http, [FLOODED], row)

        models = {FLOODED: path, OTHER: path}
        with servers.sublet(home, models, first, largest=_LARGEST, enqueued=_ENQUEUED) as server:
            flooded = servers.predict_load(server.http, [FLOODED], row)
            other = dataclasses.replace(
                servers.predict_load(server.http, [OTHER], row),
                rate=_QUIET,
                connections=8,
                seconds=long,
            )
            for _ in range(1 if quick else _ROUNDS):
                peak = callers.call(dataclasses.replace(flooded, seconds=short, connections=_FULL))
                crowd = dataclasses.replace(flooded, connections=_CROWD, seconds=short)
                full = callers.call(dataclasses.replace(crowd, rate=peak.rate))
                overload = callers.call(dataclasses.replace(crowd, rate=peak.rate * _OVERLOAD))
                alone = callers.call(other)
                with contextlib.ExitStack() as held:
                    flood = callers.start(
                        dataclasses.replace(crowd, rate=peak.rate * _FLOOD, seconds=long + 1)
                    )
                    held.callback(flood.kill)
                    beside = callers.call(other)
                    loaded = callers.heard(flood)
                rounds.append(Round(peak, full, overload, loaded, {ALONE: alone, BESIDE: beside}))
                print(
                    f"  peak {peak.rate:.0f}/s; other's p99 {alone.p99 * 1e3:.1f} ms alone,"
                    f" {beside.p99 * 1e3:.1f} ms beside",
                    file=sys.stderr,
                )
    return result(rounds)


def result(rounds: Sequence[Round]) -> Result:
    """The tables and the bars of these rounds."""
    situations = {
        "flooded model, closed loop (the peak)": [one.peak for one in rounds],
        "flooded model, asked at its peak's rate": [one.full for one in rounds],
        f"flooded model, asked at {_OVERLOAD:g} times that": [one.overload for one in rounds],
        f"flooded model, asked at {_FLOOD:g} times that": [one.flood for one in rounds],
        f"other model, {_QUIET:g}/s, alone": [one.other[ALONE] for one in rounds],
        f"other model, {_QUIET:g}/s, beside the flood": [one.other[BESIDE] for one in rounds],
    }
    table = Table(
        "one model flooded, another asked now and then",
        ("", "asked/s", "done/s", "p50", "p99", "refused", "in"),
        tuple(_row(name, several) for name, several in situations.items()),
        (
            "p50, p99: milliseconds of what was accepted, from when it was due. in: milliseconds,"
            " p99 of refusals. refused: share of what was asked.",
            f"largest batch {_LARGEST}, {_ENQUEUED} batches may wait. The peak is that of {_FULL}"
            " connections: the queue is full, and hardly anybody is refused.",
        ),
    )
    other = [
        (one.other[BESIDE].p99, one.other[ALONE].p99) for one in rounds if one.other[ALONE].p99
    ]
    lost = [heard.refused + heard.late for one in rounds for heard in one.other.values()]
    bars = [
        Bar(
            "flood of 10x: the other's p99, of alone",
            figures.paired_ratio([a for a, _ in other], [b for _, b in other]),
            2,
            "at most",
        ),
        Bar("flood of 10x: the other's refusals", sum(lost), 0, "at most", "requests"),
        Bar(
            "overload of 5x: accepted p99, of the peak's",
            figures.paired_ratio(
                [one.overload.p99 for one in rounds], [one.peak.p99 for one in rounds]
            ),
            1.25,
            "at most",
        ),
        Bar(
            "overload of 5x: p99 of refusals",
            figures.median([one.overload.refused_p99 for one in rounds]) * 1000,
            50,
            "at most",
            "ms",
        ),
        Bar(
            "overload of 5x: throughput, of the peak",
            figures.paired_ratio(
                [one.overload.rate for one in rounds], [one.peak.rate for one in rounds]
            ),
            0.8,
            "at least",
        ),
    ]
    samples = {
        "rounds": [_without_samples(dataclasses.asdict(one)) for one in rounds],
    }
    return Result("fairness", (table,), tuple(bars), samples)


def _row(name: str, several: Sequence[callers.Heard]) -> tuple[str, ...]:
    asked = [(one.answered + one.refused + one.late) / one.seconds for one in several]
    refused = [1 - one.answered / max(one.answered + one.refused + one.late, 1) for one in several]
    late = figures.median([one.refused_p99 for one in several])
    return (
        name,
        f"{figures.median(asked):.0f}",
        f"{figures.median([one.rate for one in several]):.0f}",
        *(
            figures.significant(figures.median([getattr(one, q) for one in several]) * 1000)
            for q in ("p50", "p99")
        ),
        f"{figures.median(refused) * 100:.0f} %",
        figures.significant(late * 1000) if late else "–",
    )


def _without_samples(document: dict[str, object]) -> dict[str, object]:
    document.pop("sample", None)
    for inner in document.values():
        if isinstance(inner, dict):
            _without_samples(inner)
    return document
