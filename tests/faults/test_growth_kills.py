"""Brokers and keepers are killed while leases grow: no raise is lost, and nobody has too much."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from support.sandbox import Sandbox, wait_for

NewSandbox = Callable[..., Sandbox]

GROW = """
import sys, time
import tensorflow as tf

kept = []
for _ in range(int(sys.argv[1])):
    kept.append(tf.ones([70 << 18]))
    time.sleep(0.2)
print(len(kept))
"""


def test_a_program_grows_through_the_deaths_of_its_brokers(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox()
    sandbox.write("grow.py", GROW)
    client = sandbox.start("run", "-q", "--memory", "64MiB..3GiB", "grow.py", "20")
    (runs,) = wait_for(lambda: list(sandbox.home.glob("runs/1.1")), "it was started")
    wait_for(lambda: list(runs.glob("raise-*")), "its lease can grow")
    chance = random.Random(7)
    killed = 0
    while client.poll() is None and killed < 6:
        with contextlib.suppress(OSError):
            os.kill(sandbox.status()["pid"], signal.SIGKILL)
            killed += 1
        time.sleep(chance.uniform(0.2, 0.7))
    out, _ = client.communicate()
    assert (client.returncode, out) == (0, "20\n")
    assert killed > 2


def test_what_a_killed_keeper_leaves_gives_back_what_it_had_grown_to(
    new_sandbox: NewSandbox,
) -> None:
    sandbox = new_sandbox()
    sandbox.write("grow.py", GROW)
    client = sandbox.start("run", "-q", "--memory", "64MiB..3GiB", "grow.py", "1000")

    def grown() -> int:
        rows = sandbox.status()["leases"]
        large = rows and rows[0]["lease"] > 400 << 20
        return rows[0]["pid"] if large else 0

    worker = wait_for(grown, "it has grown")
    stat = Path(f"/proc/{worker}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    client.communicate()
    assert client.returncode != 0
    wait_for(lambda: not sandbox.status()["leases"], "its lease has ended")
    (device,) = sandbox.status()["devices"]
    assert device["leased"] == 0
