"""What a process costs a card beside its pool: measured, learned, charged and shown."""

import json
import subprocess
from collections.abc import Callable

import pytest

from standin import Gpu, Machine
from support.sandbox import PATIENCE, Sandbox

NewSandbox = Callable[..., Sandbox]
NewMachine = Callable[..., Machine]
MIB, GIB = 1 << 20, 1 << 30

# Takes so many MiB in pieces of 32; ends when its input does.
HOLD = """
import os, sys
import tensorflow as tf
kept = [tf.fill([32 << 18], 1.0) for _ in range(int(sys.argv[1]) // 32)]
print(os.getpid(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("context", "mib"), [(2048, 640), (256, 1536)])
def test_after_three_runs_the_charge_is_what_the_process_holds_and_a_fifth_more_at_most(
    context: int, mib: int, new_machine: NewMachine, new_sandbox: NewSandbox
) -> None:
    """Though the first was charged by TensorFlow's table, for any program on any card."""
    machine = new_machine(Gpu(uuid="GPU-a", total=8 * GIB), context=context * MIB, computes=False)
    sandbox = new_sandbox(**machine.environ)
    sandbox.write("hold.py", HOLD)
    words = ("run", "--device", "gpu", "--report", "r.json", "hold.py", str(mib))
    for _ in range(3):
        sandbox.sublet(*words, check=True)
    with sandbox.start(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as last:
        try:
            assert last.stdout is not None
            pid = int(last.stdout.readline())
            held = machine.held("GPU-a")[pid]
            (lease,) = sandbox.status()["leases"]
        finally:
            last.communicate(timeout=PATIENCE)
    assert held <= lease["charge"] <= 1.2 * held
    beside = lease["charge"] - lease["lease"]
    assert context * MIB <= beside <= 1.15 * context * MIB
    told = sandbox.sublet("explain", str(lease["job"]), check=True).stdout
    assert "were seen on a Standin RTX 4090" in " ".join(told.split())
    report = json.loads((sandbox.work / "r.json").read_text())
    assert context * MIB <= report["outside"] <= (context + 16) * MIB
    assert machine.refusals() == []


def test_where_the_driver_names_no_processes_the_table_stays_and_status_says_so(
    new_machine: NewMachine, new_sandbox: NewSandbox
) -> None:
    """As in many containers."""
    not_supported = 3
    card = Gpu(uuid="GPU-a", total=8 * GIB, list_error=not_supported)
    machine = new_machine(card, computes=False)
    sandbox = new_sandbox(**machine.environ)
    sandbox.write("hold.py", HOLD)
    words = ("run", "--memory", "1GiB", "hold.py", "64")
    sandbox.sublet(*words, check=True)
    with sandbox.start(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as last:
        try:
            assert last.stdout is not None
            assert last.stdout.readline()
            (lease,) = sandbox.status()["leases"]
            shown = sandbox.sublet("status", check=True).stdout
        finally:
            last.communicate(timeout=PATIENCE)
    assert lease["charge"] - lease["lease"] == 1536 * MIB
    assert "gpu0: the driver does not say what single processes hold" in " ".join(shown.split())
