"""`python -m bench.rounds`: the twenty example programs under leases on a stand-in card of 8 GiB.

Each as its user would run it (demo/catalogue.py), three at a time, in another order in each round.
All have to end well, and the driver may refuse nothing. Ends with 1 if one does not. Kernels are
computed only where a program needs their numbers: a round takes a minute then, and not fifteen.
"""

import argparse
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from bench import machine, report
from bench.sandbox import SUBLET, sandbox
from demo.catalogue import PROGRAMS, Program
from demo.devices import StandInCard

_PATIENCE = 1800


@dataclass
class Outcome:
    """What became of all of them."""

    well: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """By the driver."""


def run(programs: Sequence[Program], at_once: int, *, all_computed: bool) -> Outcome:
    """Run them in this order, so many at a time."""
    found = Outcome()
    with sandbox() as place:
        card = StandInCard(place.directory / "card")
        place.env.update(card.environ)

        def one(program: Program) -> None:
            computed = all_computed or program.needs_numbers
            options = ["--memory", program.asked(card.id), "--on-oom", program.on_oom]
            done = subprocess.run(
                [str(SUBLET), "run", "--device", card.id, *options, str(program.path)],
                env={**place.env, "STANDIN_COMPUTES": str(int(computed))},
                cwd=place.directory,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_PATIENCE,
            )
            if done.returncode == 0:
                found.well[program.name] += 1
            else:
                found.failed.append(f"{program.name}: {done.returncode}\n{done.stderr[-2500:]}")
            ended = found.well.total() + len(found.failed)
            print(f"{ended} of {len(programs)}: {program.name}: {done.returncode}", flush=True)

        with ThreadPoolExecutor(at_once) as threads:
            list(threads.map(one, programs))
        found.refused = card.refusals()
    return found


def result(found: Outcome, rounds: int, seconds: float) -> report.Result:
    """The table and the bars."""
    rows = tuple((program.name, f"{found.well[program.name]} of {rounds}") for program in PROGRAMS)
    table = report.Table(
        "the twenty example programs on a stand-in card of 8 GiB",
        ("program", "ended well"),
        rows,
        (f"{seconds:.0f} s.",),
    )
    bars = (
        report.Bar("programs that failed", len(found.failed), 0, "at most", ""),
        report.Bar("refusals of the driver", len(found.refused), 0, "at most", ""),
    )
    return report.Result("rounds", (table,), bars, {"rounds": rounds, "well": dict(found.well)})


def main() -> int:
    """Print what went wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.rounds", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--at-once", type=int, default=3, help="how many ask for leases at a time")
    parser.add_argument(
        "--compute-all",
        action="store_true",
        help="compute the kernels of every program, which takes hours; memory is the same",
    )
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    facts, began = machine.facts(), time.monotonic()
    programs = [
        program for _ in range(asked.rounds) for program in rng.sample(PROGRAMS, len(PROGRAMS))
    ]
    found = run(programs, asked.at_once, all_computed=asked.compute_all)
    for line in (*found.failed, *found.refused):
        print(line)
    told = result(found, asked.rounds, time.monotonic() - began)
    print(told.render())
    report.write(told.document(facts, quick=asked.rounds < 10))
    return 1 if found.failed or found.refused else 0


if __name__ == "__main__":
    sys.exit(main())
