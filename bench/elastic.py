"""Leases that breathe: what a raise takes, and whether programs live on a device that is too small.

Eight programs of examples/programs at a time, on a device that holds all their peaks, and on one
that holds 60 % of them: in their first run, in their second, and with sizes said by hand, which are
just above what each was seen to need.
"""

import contextlib
import json
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import figures, processes
from bench.report import Bar, Result, Table
from bench.sandbox import PROGRAMS, ROOT, SUBLET, Sandbox, sandbox

_MiB = 2**20
_EIGHT = (
    "attention",
    "autoencoder",
    "cnn",
    "custom_loop",
    "lstm",
    "mixed_precision",
    "resnet",
    "vae",
)
_PIECE = 200
_PATIENCE = 600
_BY_HAND = 1.1
"""A ceiling that the user says is so much above the peak that was seen, and 16 MiB."""
_RAISE, _MAKESPAN = 0.020, 1.15


@dataclass(frozen=True)
class Batch:
    """Eight programs that ran at the same time."""

    seconds: float
    codes: tuple[int, ...]
    grew: int
    """How many had a lease that grew."""

    @property
    def died(self) -> int:
        return sum(code != 0 for code in self.codes)


def measure(quick: bool) -> Result:
    """First what a raise takes, then the batches in turns."""
    raises = _raises(4 if quick else 16)
    names = _EIGHT[:3] if quick else _EIGHT
    needs = _needs(names)
    batches: dict[str, list[Batch]] = {}
    for _ in range(1 if quick else 2):
        for share in (1.0, 0.6):
            for way, batch in _batches(names, needs, share).items():
                batches.setdefault(f"{way}, {share:.0%}", []).append(batch)
    return result(raises, needs, batches)


def result(
    raises: Sequence[float],
    needs: Mapping[str, tuple[int, int]],
    batches: Mapping[str, Sequence[Batch]],
) -> Result:
    """The tables and the bars."""
    median = statistics.median(raises)
    rows = [
        (
            way,
            figures.seconds(statistics.median(one.seconds for one in found)),
            f"{sum(one.died for one in found)} of {sum(len(one.codes) for one in found)}",
            f"{sum(one.grew for one in found)}",
        )
        for way, found in batches.items()
    ]
    peaks = sum(peak for peak, _ in needs.values()) // _MiB
    tables = (
        Table(
            "a piece for which the lease has to grow",
            ("pieces", "median", "slowest"),
            ((f"{len(raises)}", figures.seconds(median), figures.seconds(max(raises))),),
        ),
        Table(
            f"{len(needs)} programs at a time, with peaks of {peaks} MiB together",
            ("sizes, and the device's share of the peaks", "makespan", "died", "grew"),
            tuple(rows),
        ),
    )
    tight = {
        way: statistics.median(one.seconds for one in found)
        for way, found in batches.items()
        if way.endswith("60%")
    }
    fixed = tight["by hand, 60%"]
    learned = [one for way, found in batches.items() if "by hand" not in way for one in found]
    bars = (
        Bar("a raise, at the median", median, _RAISE, "at most", "seconds"),
        Bar("programs that died", sum(one.died for one in learned), 0, "at most", "runs"),
        Bar("makespan, of sizes by hand", tight["second run, 60%"] / fixed, _MAKESPAN, "at most"),
    )
    samples = {
        "raises": list(raises),
        "needs": {name: list(need) for name, need in needs.items()},
        "batches": {way: [one.seconds for one in found] for way, found in batches.items()},
    }
    return Result("elastic", tables, bars, samples)


def _raises(count: int) -> list[float]:
    """Seconds that pieces took for which there was no room in the lease."""
    with sandbox() as home:
        home.warm_up()
        program = PROGRAMS / "take_steps.py"
        words: list[str | Path] = [
            SUBLET,
            "run",
            "-q",
            "--memory",
            "64MiB..12GiB",
            program,
            str(count),
            str(_PIECE),
        ]
        ran = subprocess.run(
            words, env=home.env, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
        if ran.returncode != 0:
            raise processes.Failed(f"take_steps.py: {ran.stderr[-500:]}")
        return [float(line) for line in ran.stdout.split()]


def _needs(names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """The peak of each program, and what its process costs, each alone on an idle device."""
    found = {}
    with sandbox() as home:
        home.warm_up()
        for name in names:
            report = _finish(_start(home, name, "auto"), home, name)
            if report["code"] != 0:
                raise processes.Failed(f"{name}.py ended with {report['code']}")
            found[name] = (report["peak"], max(0, report["system_peak"] - report["peak"]))
    return found


def _batches(
    names: Sequence[str], needs: Mapping[str, tuple[int, int]], share: float
) -> dict[str, Batch]:
    with sandbox() as home:
        home.warm_up()
        standing = sum(nursery["holds"] for nursery in home.status()["nurseries"])
        home.sublet("down")
        room = sum(peak + beside for peak, beside in needs.values())
        home.env["SUBLET_CPU_MEMORY"] = f"{(standing + int(share * room)) // _MiB + 64}MiB"
        home.warm_up()
        by_hand = {name: f"{int(needs[name][0] * _BY_HAND) // _MiB + 16}MiB" for name in names}
        return {
            "first run": _batch(home, dict.fromkeys(names, "auto")),
            "second run": _batch(home, dict.fromkeys(names, "auto")),
            "by hand": _batch(home, by_hand),
        }


def _batch(home: Sandbox, memory: Mapping[str, str]) -> Batch:
    began = time.monotonic()
    running = {name: _start(home, name, asked) for name, asked in memory.items()}
    reports = [_finish(process, home, name) for name, process in running.items()]
    seconds = time.monotonic() - began
    grew = sum(report["grew"] for report in reports)
    return Batch(seconds, tuple(report["code"] for report in reports), grew)


def _start(home: Sandbox, name: str, memory: str) -> "subprocess.Popen[bytes]":
    report = home.directory / f"{name}.json"
    report.unlink(missing_ok=True)
    program = ROOT / "examples" / "programs" / f"{name}.py"
    words: list[str | Path] = [SUBLET, "run", "--memory", memory, "--report", report, program]
    with home.log.open("ab") as log:
        return subprocess.Popen(
            words, env=home.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def _finish(process: "subprocess.Popen[bytes]", home: Sandbox, name: str) -> dict[str, int]:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_PATIENCE)
    path: Path = home.directory / f"{name}.json"
    if not path.exists():
        process.kill()
        return {"code": 124, "peak": 0, "system_peak": 0, "grew": 0}
    document = json.loads(path.read_text())
    return {
        "code": document["code"],
        "peak": document["peak"] or 0,
        "system_peak": document["system_peak"] or 0,
        "grew": int((document["lease"] or 0) > (document["floor"] or 0)),
    }
