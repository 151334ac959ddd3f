"""`python -m bench.repeats`: public programs under plain `sublet run`, ten times each.

A program that ends well with `python` has to end well in every run: in the first, of which nothing
is known, and in all later ones, with a learned lease. The corpus takes long, so each program's runs
are kept in a file as they are made, and the next call goes on from there. When the file has all of
them, the result is written.

Half of the programs, chosen by a hash of their names, are held out: nobody looks at them when the
sizes of leases are tuned. Both halves are reported.
"""

import argparse
import contextlib
import hashlib
import json
import re
import signal
import statistics
import sys
import sysconfig
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import machine, processes, report
from bench.corpus import LIST, Program, data, programs, sources
from bench.likeness import Bench, templates
from bench.sandbox import SUBLET, sandbox

RUNS = 10
_MiB = 2**20
_COMMAND = (SUBLET, "run", "--quiet")


@dataclass(frozen=True)
class Once:
    """One run under Sublet. Sizes are in bytes."""

    code: int | None
    """None if it was stopped because it took too long."""
    cause: str
    floor: int
    lease: int
    peak: int
    seconds: float
    how: str

    @property
    def grew(self) -> bool:
        return self.lease > self.floor > 0


@dataclass(frozen=True)
class Series:
    """All runs of one program, one after the other."""

    name: str
    runs: tuple[Once, ...]
    plain: int | None = 0
    """The exit code with `python`, which is asked if a run fails; 0 is what the list promises."""


def held_out(name: str) -> bool:
    """Whether a program is of the half at which nobody looks when sizes are tuned."""
    return hashlib.sha256(name.encode()).digest()[0] % 2 == 1


def repeat(bench: Bench, program: Program, runs: int) -> Series:
    """Run a program so often, from the same files each time."""
    script = bench.bring(program)
    found = []
    for _ in range(runs):
        run = bench.run(program, _COMMAND, script)
        facts = run.report
        found.append(
            Once(
                run.code,
                facts.get("cause", ""),
                facts.get("floor") or 0,
                facts.get("lease") or 0,
                facts.get("peak") or 0,
                round(run.seconds, 2),
                report.without_directories(facts.get("how", "")),
            )
        )
        if run.code != 0:
            print("\n".join(map(str, run.err[-12:])), file=sys.stderr, flush=True)
    plain: int | None = 0
    if any(once.code != 0 for once in found):
        plain = bench.run(program, [sys.executable], script).code
    return Series(program.name, tuple(found), plain)


def read(kept: Path) -> dict[str, Series]:
    """The series that were kept, by program; the latest of each."""
    found = {}
    for line in kept.read_text().splitlines() if kept.exists() else ():
        document = json.loads(line)
        runs = tuple(Once(**once) for once in document.pop("runs"))
        found[document["name"]] = Series(runs=runs, **document)
    return found


def result(series: Mapping[str, Series], missing: Sequence[str] = ()) -> report.Result:
    """Both halves, and the bars over all."""
    halves = {
        "tuned on": [one for one in series.values() if not held_out(one.name)],
        "held out": [one for one in series.values() if held_out(one.name)],
        "all": list(series.values()),
    }
    table = report.Table(
        "public programs, again and again",
        ("half", "programs", "runs", "failed", "died", "grew 1st", "grew later", "over the peak"),
        tuple(_row(name, half) for name, half in halves.items()),
        (
            "failed: ended otherwise than with `python`. died: for want of memory. grew: runs in"
            " which an allocation did not fit and the lease was raised. over the peak: what the"
            " lease had at the end of a learned run beyond what was used, at the median.",
        ),
    )
    runs = list(_runs(series.values()))
    largest = max((once.peak for once in runs), default=0)
    bars = (
        report.Bar("programs", len(series), 60, "at least", "programs"),
        report.Bar("runs that failed", _failed(series.values()), 0, "at most", "runs"),
        report.Bar("deaths for want of memory", _died(runs), 0, "at most", "runs"),
    )
    samples = {one.name: asdict(one) for one in series.values()} | {"largest peak": largest}
    return report.Result("repeats", (table,), bars, samples, tuple(missing))


def _row(name: str, half: Sequence[Series]) -> tuple[str, ...]:
    runs = list(_runs(half))
    first = [one.runs[0] for one in half]
    later = [once for one in half for once in one.runs[1:]]
    over = [once.lease - once.peak for once in later if once.peak]
    return (
        name,
        f"{len(half)}",
        f"{len(runs)}",
        f"{_failed(half)}",
        f"{_died(runs)}",
        f"{sum(once.grew for once in first)} of {len(first)}",
        f"{sum(once.grew for once in later)} of {len(later)}",
        f"{statistics.median(over) / _MiB:.0f} MiB" if over else "",
    )


def _runs(series: Iterable[Series]) -> Iterable[Once]:
    return (once for one in series for once in one.runs)


def _failed(series: Iterable[Series]) -> int:
    return sum(once.code != one.plain for one in series for once in one.runs)


def _died(runs: Iterable[Once]) -> int:
    return sum(once.cause == "lease exceeded" for once in runs)


def _tell(series: Series) -> None:
    sizes = " ".join(
        f"{once.peak // _MiB}/{once.floor // _MiB}"
        + (f"^{once.lease // _MiB}" if once.grew else "")
        + ("" if once.code == 0 else f"!{once.code}:{once.cause}")
        for once in series.runs
    )
    print(f"  {series.name}: {series.plain} {sizes}", file=sys.stderr, flush=True)


def main() -> int:
    """Go on with the series; 1 if a program failed that ends well with `python`."""
    parser = argparse.ArgumentParser(prog="python -m bench.repeats", description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="git directories, owner+name")
    parser.add_argument("--list", type=Path, default=LIST, help="the programs; default: ours")
    parser.add_argument("--keep", type=Path, required=True, help="a file for the series so far")
    parser.add_argument("--only", default="", help="a regular expression in the name")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--lanes", type=int, default=1, help="so many programs at a time")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no program after these")
    parser.add_argument("--longest", type=float, default=300, help="seconds that a run may take")
    asked = parser.parse_args()
    processes.adopt_orphans()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    data.trust(Path(sysconfig.get_path("purelib")))
    chosen = [one for one in programs(asked.list) if re.search(asked.only, one.name)]
    facts = machine.facts()
    print(f"== repeats == {machine.line(facts)}\n", flush=True)
    missing = _go_on(chosen, asked)
    series = read(asked.keep)
    left = [one.name for one in chosen if one.name not in series]
    found = result({one.name: series[one.name] for one in chosen if one.name in series}, missing)
    print(found.render())
    if left:
        print(f"\n{len(left)} programs are left: call it again")
    report.write(found.document(facts, bool(asked.only or left)))
    return int(bool(missing) or any(bar.met is False for bar in found.bars))


def _go_on(chosen: Sequence[Program], asked: Any) -> list[str]:
    """Run those of which there is no series yet, while there is time; what cannot be had."""
    until = time.monotonic() + 60 * asked.minutes
    done = read(asked.keep)
    left = [one for one in chosen if one.name not in done]
    missing: list[str] = []
    waiting = iter(left)
    turn = threading.Lock()

    def lane(bench: Bench) -> None:
        while time.monotonic() < until:
            with turn:
                program = next(waiting, None)
            if program is None:
                return
            try:
                series = repeat(bench, program, asked.runs)
            except (sources.Missing, OSError) as trouble:
                missing.append(f"{program.name}: {trouble}")
                continue
            with turn, asked.keep.open("a") as file:
                _tell(series)
                file.write(json.dumps(asdict(series)) + "\n")

    with contextlib.ExitStack() as stack:
        store = stack.enter_context(sandbox()).directory
        made = templates(store, {program.full for program in left})
        homes = [stack.enter_context(sandbox()) for _ in range(asked.lanes)]
        benches = [Bench(home, made, asked.corpus, frozenset(), asked.longest) for home in homes]
        threads = [threading.Thread(target=lane, args=(one,), daemon=True) for one in benches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return missing


if __name__ == "__main__":
    sys.exit(main())
