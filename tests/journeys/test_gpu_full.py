"""Memory that is lacking on a card, and whose fault it is. Stock TensorFlow on a stand-in driver.

A failed allocation takes TensorFlow ten seconds, so all programs run at the same time, each on a
card of its own."""

import json
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from standin import Gpu, GpuProcess, Machine
from support.sandbox import PATIENCE, Sandbox

MIB, GIB = 1 << 20, 1 << 30

# Starts on the card, waits for a line of input, and then does what is asked of it.
PROGRAM = """
import os, sys
import numpy as np
import tensorflow as tf
kept = [tf.fill([16 << 18], 1.0)]
image, filters = tf.ones((1, 8, 8, 3)), tf.ones((3, 3, 3, 4))
print(os.getpid(), flush=True)
sys.stdin.readline()
def act():
    if sys.argv[1] == "conv": tf.nn.conv2d(image, filters, 1, "SAME")
    while sys.argv[1] == "fill": kept.append(tf.fill([64 << 18], 1.0))
    while sys.argv[1] == "copy": kept.append(tf.constant(np.ones(64 << 18, np.float32)))
if sys.argv[2] == "lets go":
    act()
try:
    act()
except tf.errors.OpError as error:
    print(type(error).__name__, flush=True)
sys.exit(3)
"""
CASES = {
    # What it does, whether it catches the error, its lease, what a stranger leaves of the card.
    "fill": ("fill", "lets go", "1GiB", 600 * MIB),
    "copy": ("copy", "lets go", "1GiB", 600 * MIB),
    "handle": ("conv", "lets go", "1GiB", 16 * MIB),
    "caught": ("copy", "catches", "1GiB", 600 * MIB),
    "ceiling": ("copy", "lets go", "128MiB", None),
    "workspace": ("conv", "lets go", "48MiB", None),
}


def test_who_is_to_blame_when_a_card_has_no_memory(
    new_machine: Callable[..., Machine], new_sandbox: Callable[..., Sandbox]
) -> None:
    """Below its ceiling it is whoever took the card: named, with no larger lease proposed, and
    nothing learned. At the ceiling it is the lease, whatever TensorFlow calls that. What a program
    has caught is no verdict."""
    cards = [Gpu(uuid=f"GPU-{name}", total=4 * GIB) for name in CASES]
    machine = new_machine(*cards, handle=64 * MIB, workspace=32 * MIB, computes=False)
    sandbox = new_sandbox(**machine.environ)
    sandbox.write("program.py", PROGRAM)
    sandbox.warm()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    children: dict[str, subprocess.Popen[str]] = {}
    with ExitStack() as ends:
        for index, (name, (does, catches, memory, _)) in enumerate(CASES.items()):
            options = ("--device", f"gpu{index}", "--memory", memory, "--report", f"{name}.json")
            child = sandbox.start("run", *options, "program.py", does, catches, **pipes)
            children[name] = ends.enter_context(child)
            ends.callback(child.kill)
        now = []
        for card, (name, (*_, leaves)) in zip(cards, CASES.items(), strict=True):
            out = children[name].stdout
            assert out is not None
            pid = int(out.readline())
            used = card.total - machine.held(card.uuid)[pid] - leaves if leaves else 0
            now.append(replace(card, used=used, processes=(GpuProcess(1, used),)))
        machine.has(*now)
        for child in children.values():
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        said = {name: child.communicate(timeout=PATIENCE) for name, child in children.items()}
    reports = {name: _report(sandbox.work / f"{name}.json") for name in CASES}
    causes = {name: (one["cause"], one["code"]) for name, one in reports.items()}
    assert causes == {
        **dict.fromkeys(("fill", "copy", "handle"), ("device full", 1)),
        "caught": ("exited", 3),
        **dict.fromkeys(("ceiling", "workspace"), ("lease exceeded", 1)),
    }, said
    stranger = Path("/proc/1/comm").read_text().strip()
    for name, words in {
        "fill": "OOM when allocating tensor with shape[16777216]",
        "copy": "Dst tensor is not initialized",
        "handle": "No BLAS for stream",
    }.items():
        told = said[name][1].partition("sublet: other programs took memory of gpu")[2]
        assert words in told
        assert f"{stranger} (1) 3." in told, told
        assert "--memory" not in told
    assert said["caught"][0] == "InternalError\n"
    assert "sublet: the program needed more memory than its lease" in said["ceiling"][1]
    told = " ".join(said["workspace"][1].partition("sublet: the program needed more")[2].split())
    assert "Out of memory while trying to allocate" in told
    assert "MiB more, in one piece" in told
    with closing(sqlite3.connect(sandbox.home / "ledger.sqlite")) as ledger:
        rows = ledger.execute(
            "SELECT device, exceeded FROM peaks WHERE program LIKE '%program.py' ORDER BY exceeded"
        ).fetchall()
    assert rows == [("Standin RTX 4090", exceeded) for exceeded in (0, 1, 1)]


def _report(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found
