"""`python -m bench.cards`: random programs under leases on two stand-in cards.

Each takes memory in its own way (eager tensors, copies, a logical device's limit, growth, a TF1
fraction, children that share the lease), under a lease of some kind (a size, a range, `grow`, what
was learned). A stranger is on each card at first, and goes in four steps. The driver may refuse
nothing, and no program may fail, but by filling its own lease. Ends with 1 if one does.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench import machine, report
from bench.sandbox import ROOT, SUBLET, sandbox

sys.path.insert(0, str(ROOT / "tests"))

from standin import Gpu, GpuProcess, Machine

_MiB, _GiB = 2**20, 2**30
_CARDS = (
    Gpu(uuid="GPU-a", name="Card A", total=8 * _GiB),
    Gpu(uuid="GPU-b", name="Card B", total=6 * _GiB),
)
_PATIENCE = 900
WAYS = ("eager", "copy", "limit", "growth", "fraction", "children")
PROGRAM = """
import multiprocessing, sys
import numpy as np

def take(way, limit, pieces):
    import tensorflow as tf
    if way == "fraction":
        tf1 = tf.compat.v1
        tf1.disable_eager_execution()
        for number, mib in enumerate(pieces):
            with tf.device("GPU:0"):
                tf1.get_variable(f"v{number}", [mib << 18], initializer=tf1.zeros_initializer())
        config = tf1.ConfigProto()
        config.gpu_options.per_process_gpu_memory_fraction = 0.9
        with tf1.Session(config=config) as session:
            session.run(tf1.global_variables_initializer())
        return
    gpu, = tf.config.list_physical_devices("GPU")
    if way == "growth":
        tf.config.experimental.set_memory_growth(gpu, True)
    if way == "limit":
        limits = [tf.config.LogicalDeviceConfiguration(memory_limit=limit)]
        tf.config.set_logical_device_configuration(gpu, limits)
    kept = []
    for mib in pieces:
        array = np.ones(mib << 18, np.float32) if way == "copy" else None
        kept.append(tf.fill([mib << 18], 1.0) if array is None else tf.constant(array))
        assert "GPU" in kept[-1].device

if __name__ == "__main__":
    way, limit, pieces = sys.argv[1], int(sys.argv[2]), [int(word) for word in sys.argv[3:]]
    if way != "children":
        sys.exit(take(way, limit, pieces))
    fork = multiprocessing.get_context("fork")
    parts = [pieces[number::3] for number in range(3)]
    children = [fork.Process(target=take, args=("eager", limit, part)) for part in parts]
    for child in children: child.start()
    for child in children: child.join()
    sys.exit(max(abs(child.exitcode) for child in children))
"""


@dataclass(frozen=True)
class Trial:
    """One program, and the lease that it asks for."""

    way: str
    memory: str
    limit: int
    """What its user's own limit is, in MiB."""
    pieces: tuple[int, ...]

    @property
    def words(self) -> list[str]:
        return [self.way, str(self.limit), *map(str, self.pieces)]


@dataclass
class Outcome:
    """What became of all of them."""

    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many of each way ended well, had filled their lease, or went wrong."""
    wrong: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """By the driver."""


def draw(rng: random.Random) -> Trial:
    """A program that takes 60 % of what it may use; pieces may get more than they ask for. The
    pools of children have gaps each, so they take half."""
    way = rng.choice(WAYS)
    ceiling = rng.randrange(256 if way == "children" else 128, 1536)
    limit = rng.randrange(96, ceiling) if way == "limit" else ceiling
    left = int((limit - 16) * (0.5 if way == "children" else 0.6))
    pieces: list[int] = []
    while left >= 8 and len(pieces) < 24:
        pieces.append(rng.randrange(4, max(5, min(left, limit // 4))))
        left -= pieces[-1]
    size, elastic = f"{ceiling}MiB", f"{max(64, ceiling // 2)}MiB..{2 * ceiling}MiB"
    memory = rng.choices((size, elastic, "grow", "auto"), (4, 4, 1, 1))[0]
    return Trial(way, memory if way != "limit" else size, limit, tuple(pieces))


def run(trials: Sequence[Trial], at_once: int, seed: int) -> Outcome:
    """Run them all, so many at a time."""
    found = Outcome()
    rng = random.Random(seed)
    with sandbox() as place:
        context = rng.randrange(192, 700) * _MiB
        cards = Machine(place.directory / "cards", *_CARDS, context=context, computes=False)
        place.env.update(cards.environ)
        script = place.directory / "taker.py"
        script.write_text(PROGRAM)
        held = [rng.randrange(1, _GiB) for _ in _CARDS]

        def strangers(quarters: int) -> None:
            taken = [used * quarters // 4 for used in held]
            cards.has(
                *(
                    replace(card, used=used, processes=(GpuProcess(1, used),)) if used else card
                    for card, used in zip(_CARDS, taken, strict=True)
                )
            )

        strangers(4)

        def one(numbered: tuple[int, Trial]) -> None:
            number, trial = numbered
            if number % max(1, len(trials) // 5) == 0:
                strangers(max(0, 4 - number * 5 // len(trials)))
            report_file = place.directory / f"{number}.json"
            options = ["--device", "gpu", "--memory", trial.memory, "--report", str(report_file)]
            words = [str(SUBLET), "run", *options, str(script)]
            done = subprocess.run(
                [*words, *trial.words],
                env=place.env,
                cwd=place.directory,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_PATIENCE,
            )
            how = "well"
            if done.returncode != 0:
                how = "filled" if _filled(report_file, trial) else "wrong"
            found.ended[trial.way, how] += 1
            if how == "wrong":
                found.wrong.append(f"{trial}: {done.returncode}\n{done.stderr[-2500:]}")
            if how == "wrong" or number % 50 == 0:
                print(f"{number}: {trial.way} {trial.memory}: {how}", flush=True)
            report_file.unlink(missing_ok=True)

        with ThreadPoolExecutor(at_once) as threads:
            list(threads.map(one, enumerate(trials)))
        found.refused = cards.refusals()
    return found


def result(found: Outcome, seed: int, seconds: float) -> report.Result:
    """The table and the bars."""
    hows = ("well", "filled", "wrong")
    rows = [(way, *(str(found.ended[way, how]) for how in hows)) for way in WAYS]
    table = report.Table(
        f"{found.ended.total()} random programs on two stand-in cards",
        ("way to take memory", "ended well", "filled its lease", "went wrong"),
        tuple(rows),
        (f"Seed {seed}, {seconds:.0f} s.",),
    )
    bars = (
        report.Bar("programs refused below their ceiling", len(found.wrong), 0, "at most", ""),
        report.Bar("refusals of the driver", len(found.refused), 0, "at most", ""),
    )
    ended = {f"{way}, {how}": count for (way, how), count in sorted(found.ended.items())}
    return report.Result("cards", (table,), bars, {"seed": seed, "ended": ended})


def _filled(path: Path, trial: Trial) -> bool:
    """Whether it failed because its lease was full: what it asked for did not fit, or hardly, as
    TensorFlow gives a piece up to twice its size. A lease that may grow and finds no room on its
    card is full, too."""
    ended = json.loads(path.read_text()) if path.exists() else {}
    most = min(ended.get("lease") or 0, trial.limit * _MiB)
    peak, asked = ended.get("peak") or 0, ended.get("asked") or 0
    return ended.get("cause") == "lease exceeded" and max(peak / 0.75, peak + asked) > most


def main() -> int:
    """Print what went wrong, and how to see it again."""
    parser = argparse.ArgumentParser(prog="python -m bench.cards", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="programs")
    parser.add_argument("--at-once", type=int, default=4, help="how many ask for leases at a time")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    facts, began = machine.facts(), time.monotonic()
    found = run([draw(rng) for _ in range(asked.count)], asked.at_once, asked.seed)
    for line in (*found.wrong, *found.refused):
        print(line)
    told = result(found, asked.seed, time.monotonic() - began)
    print(told.render())
    report.write(told.document(facts, quick=asked.count < 1000))
    return 1 if found.wrong or found.refused else 0


if __name__ == "__main__":
    assert Path(SUBLET).exists()
    sys.exit(main())
