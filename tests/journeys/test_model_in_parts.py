"""A model that dies under a lease on one card trains under leases on two."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.sandbox import PROGRAMS
from standin import Gpu, Machine
from support.sandbox import Sandbox

NewSandbox = Callable[..., Sandbox]
NewMachine = Callable[..., Machine]
MiB, GiB = 2**20, 2**30
SIZE, LEASE = 96, 58

LARGE = """
import keras
import sublet
from keras import layers

def build():
    model = keras.Sequential([layers.Input((1000,)), layers.Dense(2000), layers.Dense(2000)])
    model.compile("adam", "mse")
    return model

try:
    sublet.split(build, parts=2)
except sublet.BadRequest as why:
    print(why)
"""


def run(sandbox: Sandbox, way: str, record: str, *options: str) -> tuple[dict[str, Any], str]:
    program = str(PROGRAMS / "train_parts.py")
    words = ("--report", "report.json", *options, program, way, str(SIZE), record)
    ran = sandbox.sublet("run", *words, timeout=None)
    report: dict[str, Any] = json.loads((sandbox.work / "report.json").read_text())
    return report, ran.stdout + ran.stderr


def assert_same(one: Path, other: Path) -> None:
    with np.load(one) as known, np.load(other) as found:
        assert known.files == found.files
        for name in known.files:
            np.testing.assert_allclose(known[name], found[name], atol=1e-5)


def test_a_model_that_dies_in_one_lease_trains_across_two_with_the_same_result(
    new_machine: NewMachine, new_sandbox: NewSandbox
) -> None:
    """Each card holds its part, and no more than its lease."""
    cards = [Gpu(uuid=f"GPU-{name}", total=4 * GiB, compute=(7, 5)) for name in "ab"]
    machine = new_machine(*cards)
    sandbox = new_sandbox(**machine.environ)
    report, said = run(sandbox, "whole", "cpu", "--device", "cpu", "--memory", "1GiB")
    assert report["code"] == 0, said
    report, said = run(sandbox, "whole", "one", "--memory", f"{LEASE}MiB")
    assert report["cause"] == "lease exceeded", said
    report, said = run(sandbox, "parts", "two", "--gpus", "2", "--memory", f"{LEASE}MiB")
    assert report["code"] == 0, said
    peaks = json.loads((sandbox.work / "two.json").read_text())
    assert all(SIZE / 2 * MiB <= peak <= LEASE * MiB for peak in peaks)
    assert_same(sandbox.work / "cpu.npz", sandbox.work / "two.npz")
    assert machine.log("cannot compute|gave up") == []


def test_a_model_that_does_not_fit_even_in_parts_is_refused_with_what_it_lacks(
    sandbox: Sandbox,
) -> None:
    """Logical CPUs share one lease."""
    sandbox.write("large.py", LARGE)
    ran = sandbox.sublet("run", "--device", "cpu", "--memory", "64MiB", "large.py", check=True)
    assert ran.stdout == (
        "sublet.split: The weights on the CPU, with their gradients and what the optimizer keeps, "
        "need 92 MiB; the lease has 64 MiB there. It lacks 28 MiB. Ask for more --memory, or for "
        "more parts and devices.\n"
    )
