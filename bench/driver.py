"""One way, run in a process of its own, so that its start-up is counted from nothing.

    bench ──drive──▶ python -m bench.driver WAY PROGRAM COUNT WIDTH DIRECTORY ──▶ programs

The times are of CLOCK_MONOTONIC, which all processes of a machine share.
"""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench import processes, ways
from bench.sandbox import ROOT, sandbox


@dataclass(frozen=True)
class Drive:
    """How long it took, in seconds."""

    from_nothing: float
    """From the start of the process that asks to the end of the last program."""
    once_warm: float
    """The same without the way's own start-up."""
    first_ops: tuple[float, ...]
    """For each program: from the start, or from being asked for, to its first operation."""


def drive(way: str, program: str, count: int, width: int, timeout: float = 900) -> Drive:
    """Run a program so many times, `width` at a time; Failed if that does not work."""
    with sandbox() as home:
        env = {**home.env, "PYTHONPATH": str(ROOT)}
        report = home.directory / "report"
        words = [sys.executable, "-m", "bench.driver", way, program, str(count), str(width)]
        began = time.monotonic_ns()
        processes.run([*words, home.directory], env, home.log, timeout=timeout)
        times = json.loads(report.read_text())
        return Drive(
            from_nothing=(times["done"] - began) / 1e9,
            once_warm=(times["done"] - times["ready"]) / 1e9,
            first_ops=tuple(nanoseconds / 1e9 for nanoseconds in times["first_ops"]),
        )


def main(way: str, program: str, count: int, width: int, directory: Path) -> None:
    """Open the way, run the programs, and write down when."""
    stamps = [str(directory / f"stamp-{number}") for number in range(count)]
    asked = []
    with ways.BY_KEY[way].open(width) as run_all:
        ready = time.monotonic_ns()
        if width == 1:
            for stamp in stamps:
                asked.append(time.monotonic_ns())
                run_all(program, [stamp])
        else:
            asked = [ready] * count
            run_all(program, stamps)
        done = time.monotonic_ns()
    first_ops = [
        int(Path(stamp).read_text()) - began for stamp, began in zip(stamps, asked, strict=True)
    ]
    times = {"ready": ready, "done": done, "first_ops": first_ops}
    (directory / "report").write_text(json.dumps(times))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
