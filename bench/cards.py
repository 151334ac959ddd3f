"""`python -m bench.cards`: random programs under leases on two stand-in cards.

Each takes memory in its own way (eager tensors, copies, a logical device's limit, growth, a TF1
fraction). A stranger is on each card at first. The driver may refuse nothing, and no program may
fail, but by filling its own lease. Ends with 1 if one does.
"""

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from bench.sandbox import ROOT, SUBLET, sandbox

sys.path.insert(0, str(ROOT / "tests"))

from standin import Gpu, GpuProcess, Machine

_MiB, _GiB = 2**20, 2**30
_CARDS = (
    Gpu(uuid="GPU-a", name="Card A", total=8 * _GiB),
    Gpu(uuid="GPU-b", name="Card B", total=6 * _GiB),
)
_PATIENCE = 900
WAYS = ("eager", "copy", "limit", "growth", "fraction")
PROGRAM = """
import sys
import numpy as np
import tensorflow as tf
way, limit, pieces = sys.argv[1], int(sys.argv[2]), [int(word) for word in sys.argv[3:]]
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
    sys.exit()
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


def draw(rng: random.Random) -> Trial:
    """A program that takes 60 % of what it may use; pieces may get more than they ask for."""
    way = rng.choice(WAYS)
    ceiling = rng.randrange(128, 1536)
    limit = rng.randrange(96, ceiling) if way == "limit" else ceiling
    left = int((limit - 16) * 0.6)
    pieces: list[int] = []
    while left >= 8 and len(pieces) < 24:
        pieces.append(rng.randrange(4, max(5, min(left, limit // 4))))
        left -= pieces[-1]
    memory = rng.choice((f"{ceiling}MiB", f"{max(64, ceiling // 2)}MiB..{2 * ceiling}MiB"))
    return Trial(way, memory if way != "limit" else f"{ceiling}MiB", limit, tuple(pieces))


def run(trials: Sequence[Trial], at_once: int, seed: int) -> list[str]:
    """What went wrong; empty if all went well."""
    wrong: list[str] = []
    rng = random.Random(seed)
    with sandbox() as place:
        context = rng.randrange(192, 700) * _MiB
        machine = Machine(place.directory / "cards", *_CARDS, context=context, computes=False)
        place.env.update(machine.environ)
        script = place.directory / "taker.py"
        script.write_text(PROGRAM)
        held = [rng.randrange(1, _GiB) for _ in _CARDS]
        machine.has(
            *(
                replace(card, used=used, processes=(GpuProcess(1, used),))
                for card, used in zip(_CARDS, held, strict=True)
            )
        )

        def one(numbered: tuple[int, Trial]) -> None:
            number, trial = numbered
            if number == len(trials) // 2:
                machine.has(*_CARDS)  # The strangers have ended.
            report = place.directory / f"{number}.json"
            options = ["--device", "gpu", "--memory", trial.memory, "--report", str(report)]
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
            if done.returncode != 0 and not _filled(report, trial):
                wrong.append(f"{trial}: {done.returncode}\n{done.stderr[-1500:]}")

        with ThreadPoolExecutor(at_once) as threads:
            list(threads.map(one, enumerate(trials)))
        wrong += machine.refusals()
    return wrong


def _filled(report: Path, trial: Trial) -> bool:
    """Whether it failed because its lease was full: TensorFlow gives a piece up to twice its
    size."""
    ended = json.loads(report.read_text()) if report.exists() else {}
    most = min(ended.get("lease") or 0, trial.limit * _MiB)
    return ended.get("cause") == "lease exceeded" and (ended.get("peak") or 0) > 0.75 * most


def main() -> int:
    """Print what went wrong, and how to see it again."""
    parser = argparse.ArgumentParser(prog="python -m bench.cards", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="programs")
    parser.add_argument("--at-once", type=int, default=4, help="how many ask for leases at a time")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    trials = [draw(rng) for _ in range(asked.count)]
    wrong = run(trials, asked.at_once, asked.seed)
    for line in wrong:
        print(line)
    print(f"{asked.count} programs, seed {asked.seed}: {len(wrong)} things went wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    assert Path(SUBLET).exists()
    sys.exit(main())
