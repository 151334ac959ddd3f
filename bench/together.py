"""`python -m bench.together`: public programs, eight at a time, on one small device.

It is just large enough for their peaks together, or has 60 % of that.

Each runs alone first, which shows what it needs. Then all eight run at the same time: for the first
time, when nothing is known of them, and then in turns with what was learned and with sizes said by
hand, just above what each was seen to need. They come to the queue in the same order each time.
None may die. On a device that holds 60 % of the peaks the learned leases may take 1.15 times as
long as the sizes by hand.
"""

import argparse
import re
import signal
import statistics
import sys
import sysconfig
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import figures, machine, processes, report
from bench.corpus import LIST, Program, data, programs
from bench.likeness import Bench, Run, templates
from bench.sandbox import SUBLET, Sandbox, sandbox

_MiB = 2**20
_EIGHT = 8
_LEAST = 16
"""MiB; no lease is smaller."""
_MAKESPAN = 1.15
_SHARES = (1.0, 0.6)
_LEARNED, _BY_HAND = "learned", "by hand"
_HAND_MARGINS = (1.05, 1.25)
"""By hand, a size is so much more than the peak, and 16 MiB: the better of both counts."""


@dataclass(frozen=True)
class Need:
    """What a program took when it ran alone, in bytes."""

    peak: int
    beside: int
    """What its process cost beside TensorFlow's pool."""

    @property
    def whole(self) -> int:
        return max(self.peak, _LEAST * _MiB) + self.beside


@dataclass(frozen=True)
class End:
    """How one of the eight ended."""

    name: str
    code: int | None
    cause: str
    floor: int
    lease: int
    peak: int
    waited: float


@dataclass(frozen=True)
class Batch:
    """Programs that ran at the same time."""

    group: int
    way: str
    share: float
    seconds: float
    ends: tuple[End, ...]

    @property
    def failed(self) -> int:
        return sum(end.code != 0 for end in self.ends)

    @property
    def grew(self) -> int:
        return sum(end.lease > end.floor > 0 for end in self.ends)


class Lanes:
    """One broker, and a place for each program that runs at the same time."""

    def __init__(self, home: Sandbox, made: dict[bool, Path], corpus: Path, longest: float) -> None:
        self.home = home
        self._benches = []
        for number in range(_EIGHT):
            directory = home.directory / f"lane-{number}"
            directory.mkdir()
            lane = Sandbox(directory)
            lane.env["SUBLET_HOME"] = home.env["SUBLET_HOME"]
            self._benches.append(Bench(lane, made, corpus, frozenset(), longest))
        self._made = made
        # What is made warm is the nursery of the programs: any other variable may make it another.
        home.env = self._benches[0].env | {"HOME": str(min(made.values()))}

    def _run(self, bench: Bench, program: Program, words: Sequence[str | Path], path: Path) -> Run:
        """Run it in the same home as all: a nursery is for programs of one home."""
        bench.env["HOME"] = str(self._made[program.full])
        return bench.run(program, words, path)

    def alone(self, program: Program) -> Need | None:
        """What a program needs that has the device for itself; None if it does not end well."""
        bench = self._benches[0]
        run = self._run(bench, program, [SUBLET, "run", "--quiet"], bench.bring(program))
        peak = run.report.get("peak") or 0
        if run.code != 0:
            print(f"  {program.name}: {run.code} alone", file=sys.stderr, flush=True)
            return None
        return Need(peak, max(0, (run.report.get("system_peak") or 0) - peak))

    def batch(self, group: int, way: str, share: float, memory: Mapping[Program, str]) -> Batch:
        """Run these at the same time, each with this `--memory`, in this order in the queue."""
        found: dict[str, Run] = {}

        def one(bench: Bench, program: Program, script: Path, asked: str) -> None:
            words = (SUBLET, "run", "--quiet", "--memory", asked)
            found[program.name] = self._run(bench, program, words, script)

        threads = [
            threading.Thread(target=one, args=(bench, program, bench.bring(program), asked))
            for bench, (program, asked) in zip(self._benches, memory.items(), strict=False)
        ]
        began = time.monotonic()
        for thread in threads:
            before = self._latest()
            thread.start()
            while thread.is_alive() and self._latest() == before:
                time.sleep(0.02)
        for thread in threads:
            thread.join()
        seconds = round(time.monotonic() - began, 2)
        batch = Batch(group, way, share, seconds, tuple(map(_end, found, found.values())))
        _tell(batch, found)
        return batch

    def _latest(self) -> int:
        """The number of the job that came last, of those that have not ended."""
        now = self.home.status()
        return max((one["job"] for one in (*now["leases"], *now["waiting"])), default=0)


def _end(name: str, run: Run) -> End:
    facts = run.report
    return End(
        name,
        run.code,
        facts.get("cause", ""),
        facts.get("floor") or 0,
        facts.get("lease") or 0,
        facts.get("peak") or 0,
        round(facts.get("waited") or 0, 2),
    )


def measure(
    number: int, group: Sequence[Program], asked: argparse.Namespace
) -> tuple[dict[str, Need], list[Batch]]:
    """All batches of one group of programs."""
    with sandbox() as store, sandbox() as home:
        made = templates(store.directory, {program.full for program in group})
        lanes = Lanes(home, made, asked.corpus, asked.longest)
        home.warm_up()
        found = {program: lanes.alone(program) for program in group}
    needs = {program: need for program, need in found.items() if need is not None}
    auto = dict.fromkeys(needs, "auto")
    batches = []
    for share in asked.share or _SHARES:
        with sandbox() as store, sandbox() as home:
            made = templates(store.directory, {program.full for program in group})
            lanes = Lanes(home, made, asked.corpus, asked.longest)
            home.warm_up()
            standing = sum(nursery["holds"] for nursery in home.status()["nurseries"])
            home.sublet("down")
            room = standing + int(share * sum(need.whole for need in needs.values()))
            home.env["SUBLET_CPU_MEMORY"] = f"{room // _MiB + 1}MiB"
            home.warm_up()
            batches.append(lanes.batch(number, "first", share, auto))
            for _ in range(asked.rounds):
                batches.append(lanes.batch(number, _LEARNED, share, auto))
                for margin in _HAND_MARGINS if asked.hand else ():
                    sizes = {
                        program: f"{int(need.peak * margin) // _MiB + 16}MiB"
                        for program, need in needs.items()
                    }
                    batches.append(lanes.batch(number, f"{_BY_HAND}, {margin:g}x", share, sizes))
    return {program.name: need for program, need in needs.items()}, batches


def result(needs: Mapping[str, Need], batches: Sequence[Batch]) -> report.Result:
    """The table and the bars."""
    ways = sorted({(batch.share, batch.way) for batch in batches}, key=lambda one: (-one[0], one))
    rows = []
    for share, way in ways:
        found = [batch for batch in batches if (batch.share, batch.way) == (share, way)]
        rows.append(
            (
                f"{share:.0%}, {way}",
                f"{sum(len(batch.ends) for batch in found)}",
                f"{sum(batch.failed for batch in found)}",
                f"{sum(batch.grew for batch in found)}",
                figures.seconds(_makespan(found)),
            )
        )
    peaks = sum(need.peak for need in needs.values()) // _MiB
    table = report.Table(
        f"{len(needs)} programs, eight at a time; peaks of {peaks} MiB together",
        ("the device's share of the peaks, and run", "programs", "failed", "grew", "makespan"),
        tuple(rows),
        ("makespan: the median of the rounds; of several groups, their sum.",),
    )
    ours = [batch for batch in batches if _BY_HAND not in batch.way]
    bars = [
        report.Bar("programs that failed", sum(b.failed for b in ours), 0, "at most", "programs")
    ]
    scarce = [batch for batch in batches if batch.share < 1]
    hands = {batch.way for batch in scarce if _BY_HAND in batch.way}
    if hands:
        best = min(_makespan([batch for batch in scarce if batch.way == way]) for way in hands)
        learned = _makespan([batch for batch in scarce if batch.way == _LEARNED])
        bars.append(
            report.Bar("makespan, of the best sizes by hand", learned / best, _MAKESPAN, "at most")
        )
    samples = {
        "needs": {name: asdict(need) for name, need in needs.items()},
        "batches": [asdict(batch) for batch in batches],
    }
    return report.Result("together", (table,), tuple(bars), samples)


def _makespan(batches: Sequence[Batch]) -> float:
    """The median of the rounds, summed over the groups; without end if a program failed."""
    if any(batch.failed for batch in batches):
        return float("inf")
    rounds: dict[int, list[float]] = {}
    for batch in batches:
        rounds.setdefault(batch.group, []).append(batch.seconds)
    return sum(map(statistics.median, rounds.values()))


def _tell(batch: Batch, found: Mapping[str, Run]) -> None:
    print(
        f"  {batch.share:.0%} {batch.way}: {batch.seconds:.0f} s, {batch.failed} failed,"
        f" {batch.grew} grew",
        file=sys.stderr,
    )
    for end in batch.ends:
        if end.code != 0:
            print(f"    {end}", file=sys.stderr)
            print("\n".join(f"      {line}" for line in found[end.name].err[-8:]), file=sys.stderr)
    sys.stderr.flush()


def main() -> int:
    """Run the corpus in groups of eight; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.together", description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="git directories, owner+name")
    parser.add_argument("--list", type=Path, default=LIST, help="the programs; default: ours")
    parser.add_argument("--only", default="", help="a regular expression in the name")
    parser.add_argument("--share", type=float, action="append", help="of the peaks; 1 and 0.6")
    parser.add_argument("--hand", action="store_true", help="with sizes by hand, too")
    parser.add_argument("--rounds", type=int, default=3, help="of learned sizes, and by hand")
    parser.add_argument("--groups", default="0:99", help="FROM:TO, of the groups of eight")
    parser.add_argument("--longest", type=float, default=600, help="seconds that a run may take")
    asked = parser.parse_args()
    processes.adopt_orphans()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    data.trust(Path(sysconfig.get_path("purelib")))
    chosen = [one for one in programs(asked.list) if re.search(asked.only, one.name)]
    first, last = map(int, asked.groups.split(":"))
    facts = machine.facts()
    print(f"== together == {machine.line(facts)}\n", flush=True)
    needs: dict[str, Need] = {}
    batches: list[Batch] = []
    for at in range(first * _EIGHT, min(last * _EIGHT, len(chosen)), _EIGHT):
        some, more = measure(at // _EIGHT, chosen[at : at + _EIGHT], asked)
        needs |= some
        batches += more
    found = result(needs, batches)
    print(found.render())
    report.write(found.document(facts, bool(asked.only or asked.groups != "0:99")))
    return int(any(bar.met is False for bar in found.bars))


if __name__ == "__main__":
    sys.exit(main())
