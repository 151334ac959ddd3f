"""How long many short Keras jobs take, two at a time."""

import sys
from collections.abc import Mapping, Sequence

from bench import figures
from bench.driver import Drive, drive
from bench.processes import Failed
from bench.report import Bar, Result, Table
from bench.ways import BY_KEY, WAYS, Way

_WIDTH = 2

Drives = Mapping[str, Mapping[int, Sequence[Drive]]]
"""What was measured: by way, by number of jobs."""


def measure(quick: bool) -> Result:
    """Every way, in rounds that begin with another one, so that a slow minute does not fall on one
    of them alone."""
    counts = (4,) if quick else (8, 24)
    drives: dict[str, dict[int, list[Drive]]] = {}
    failures: dict[str, str] = {}
    for turn in range(1 if quick else 3):
        for way in (*WAYS[turn:], *WAYS[:turn]):
            for count in counts:
                if way.installed and way.key not in failures and turn < _rounds(way, count):
                    try:
                        one = drive(way.key, "short_job", count, _WIDTH)
                    except Failed as trouble:
                        failures[way.key] = f"{way.title}: {trouble}"
                        continue
                    print(f"  {way.title}, {count} jobs: {one.from_nothing:.1f} s", file=sys.stderr)
                    drives.setdefault(way.key, {}).setdefault(count, []).append(one)
    return result(drives, counts, tuple(failures.values()))


def _rounds(way: Way, count: int) -> int:
    """A process with an import for each of many jobs takes a minute: once is enough."""
    return 1 if way.kind == "fresh" and count > 8 else 3


def result(drives: Drives, counts: Sequence[int], failures: tuple[str, ...] = ()) -> Result:
    """The table and the bars for what was measured."""
    warm = {key: {n: _middle(d, "once_warm") for n, d in by.items()} for key, by in drives.items()}
    full = {
        key: {n: _middle(d, "from_nothing") for n, d in by.items()} for key, by in drives.items()
    }
    rows = []
    for way in WAYS:
        cells = [way.title, "own" if way.isolated else "reused"]
        for times in (warm, full):
            for count in counts:
                value = times.get(way.key, {}).get(count)
                missing = "failed" if way.installed else "not inst."
                cells.append(figures.significant(value) if value is not None else missing)
        rows.append(tuple(cells))
    table = Table(
        "short Keras jobs, two at a time, seconds until all are done",
        (
            "way",
            "process",
            *(f"{count} warm" for count in counts),
            *(f"{count} all" for count in counts),
        ),
        tuple(rows),
        (
            "all: from nothing, with the way's own start-up (import of TensorFlow into workers"
            " or fork server, Ray's start, the broker and its nursery).",
            "warm: without that start-up. It is paid once and then never again.",
            "bars: ours once warm against the best of the others, their start-up in (all) and out"
            " (warm).",
            "not inst.: the package is not installed, so nothing is said about it.",
        ),
    )
    bars = [bar for count in counts for bar in _bars(count, warm, full)]
    samples = {
        key: {
            str(count): [[one.once_warm, one.from_nothing] for one in several]
            for count, several in by.items()
        }
        for key, by in drives.items()
    }
    return Result("jobs", (table,), tuple(bars), samples, failures)


def _bars(
    count: int, warm: Mapping[str, Mapping[int, float]], full: Mapping[str, Mapping[int, float]]
) -> list[Bar]:
    """Ours with a warm nursery, beside the best of the others; their start-up in and out."""
    bars = []
    for ours in ("sublet-command", "sublet-call"):
        for kind, limit in (("fresh", 3.0), ("reused", 1.0)):
            for times, when in ((full, "all"), (warm, "warm")):
                others = [
                    by[count]
                    for key, by in times.items()
                    if BY_KEY[key].kind == kind and count in by
                ]
                own = warm.get(ours, {}).get(count)
                if others and own is not None:
                    asked = "run" if ours == "sublet-command" else "run()"
                    name = f"{asked}, {count} jobs: best {kind}, {when}"
                    bars.append(Bar(name, min(others) / own, limit, "at least"))
    return bars


def _middle(drives: Sequence[Drive], field: str) -> float:
    return figures.median([getattr(one, field) for one in drives])
