"""The fence in whole runs: the real broker, the stock TensorFlow and programs without it, over the
stand-in driver. What it counts and how is in tests/inside/test_fence.py."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from standin import Gpu, Machine
from sublet.formats import attempt_files, fence_file
from support.sandbox import PATIENCE, Sandbox, wait_for

NewSandbox = Callable[..., Sandbox]
NewMachine = Callable[..., Machine]
MIB, GIB = 1 << 20, 1 << 30

TRAINING = """
import json, sys
import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(1)
x = np.random.default_rng(1).normal(size=(128, 8)).astype("float32")
layers = [tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(3)]
model = tf.keras.Sequential([tf.keras.layers.Input((8,)), *layers])
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(tf.keras.optimizers.Adam(0.02), loss, jit_compile=False)
history = model.fit(x, x[:, :3].argmax(1), batch_size=64, epochs=2, verbose=0).history
kept = []
try:
    for _ in range(int(sys.argv[1]) // 64):
        kept.append(tf.raw_ops.Empty(shape=[64 << 18], dtype=tf.float32))
except tf.errors.ResourceExhaustedError:
    pass
device = model.variables[0].value.device.rpartition("device:")[2]
print(json.dumps({"loss": history["loss"], "on": device, "MiB": 64 * len(kept)}))
"""

# Takes what each line of its input says, in MiB, as PyTorch or JAX would: from the driver.
DRIVER = """
import ctypes, json, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
context, left, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
cuda.cuCtxSetCurrent(context)
cuda.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(total))
lease = json.loads(os.environ["SUBLET_LEASE"])
print(json.dumps({"pid": os.getpid(), "total": total.value, "dir": lease["dir"]}), flush=True)
for line in sys.stdin:
    at, size = ctypes.c_uint64(), ctypes.c_size_t(int(line) << 20)
    print(json.dumps(cuda.cuMemAlloc_v2(ctypes.byref(at), size)), flush=True)
"""


class Program:
    """A program that takes memory when it is told to."""

    def __init__(self, child: "subprocess.Popen[str]") -> None:
        self.child = child
        self.facts = self.answer()

    def ask(self, mib: int) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(f"{mib}\n")
        self.child.stdin.flush()

    def answer(self) -> Any:
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        assert line, self.child.communicate()[1]
        return json.loads(line)

    def end(self) -> str:
        _, said = self.child.communicate(timeout=PATIENCE)
        assert self.child.returncode == 0, said
        return said


@contextmanager
def running(sandbox: Sandbox, *options: str) -> Iterator[Program]:
    sandbox.write("driver.py", DRIVER)
    with sandbox.start("run", *options, "driver.py", stdin=subprocess.PIPE) as child:
        try:
            yield Program(child)
        finally:
            child.kill()


def test_tensorflow_trains_under_the_fence_with_our_patches_and_without(
    new_machine: NewMachine, new_sandbox: NewSandbox
) -> None:
    """With the same result. Without the patches the fence alone holds it, in the fresh process of a
    shell's: it is told of a small card, and sizes itself to that."""
    machine = new_machine(Gpu(uuid="GPU-a", total=8 * GIB, compute=(7, 5)))
    sandbox = new_sandbox(**machine.environ)
    sandbox.write("training.py", TRAINING)
    fenced = ("run", "--fence", "--memory", "1GiB")
    bare = f"PYTHONPATH= exec {sys.executable} training.py 4096"
    children = [
        sandbox.start(*fenced, "training.py", "4096"),
        sandbox.start(*fenced, "--", "sh", "-c", bare),
    ]
    found = []
    for child in children:
        out, said = child.communicate(timeout=PATIENCE)
        assert child.returncode == 0, said
        found.append(json.loads(out))
    patched, unpatched = found
    assert patched["on"] == unpatched["on"] == "GPU:0"
    assert patched["loss"] == unpatched["loss"]
    assert patched["loss"][-1] < patched["loss"][0]
    assert 1024 - 128 <= patched["MiB"] < 1024
    assert 256 < unpatched["MiB"] <= 1024
    assert machine.refusals() == []
    assert machine.log("cannot compute|gave up") == []


def test_a_program_without_tensorflow_is_held_and_grows_whoever_is_killed(
    new_machine: NewMachine, new_sandbox: NewSandbox
) -> None:
    """A broker that is killed while the program waits is followed by one that raises the lease; and
    one that was killed before it moved the bound, by one that does."""
    machine = new_machine(Gpu(uuid="GPU-a", total=8 * GIB), computes=False)
    sandbox = new_sandbox(**machine.environ)
    with running(sandbox, "--fence", "--memory", "512MiB..4GiB") as program:
        directory = program.facts["dir"]
        assert program.facts["total"] == 4 * GIB
        (row,) = sandbox.status()["leases"]
        assert (row["lease"], row["unfenced"]) == (512 * MIB, "")
        first = row["charge"]
        program.ask(first // MIB)
        assert program.answer() == 0
        program.ask(256)
        assert program.answer() == 0
        (row,) = sandbox.status()["leases"]
        assert row["lease"] == (512 + 256) * MIB
        assert fence_file.read_bound(directory) == row["charge"] == first + 256 * MIB

        broker = sandbox.status()["pid"]
        os.kill(broker, signal.SIGSTOP)
        program.ask(1024)
        wait_for(lambda: any(map(attempt_files.lack, os.listdir(directory))), "it lacks memory")
        os.kill(broker, signal.SIGKILL)
        (row,) = sandbox.status()["leases"]
        assert program.answer() == 0

        os.kill(sandbox.status()["pid"], signal.SIGKILL)
        fence_file.write_bound(directory, first)
        (row,) = sandbox.status()["leases"]
        assert fence_file.read_bound(directory) == row["charge"] >= first + 1280 * MIB
        program.ask(4096)
        out_of_memory = 2
        assert program.answer() == out_of_memory
        assert "lease 512 MiB, grew to 1.8 GiB" in program.end()
    assert machine.refusals() == []


def test_without_a_fence_everything_is_as_before_and_status_says_so(
    new_machine: NewMachine, new_sandbox: NewSandbox
) -> None:
    """It is off unless it is asked for; and where it cannot be built, the program is told why."""
    machine = new_machine(Gpu(uuid="GPU-a", total=8 * GIB), computes=False)
    sandbox = new_sandbox(**machine.environ)
    sandbox.environ |= {"SUBLET_FENCE": "1", "PATH": machine.environ["LD_LIBRARY_PATH"]}
    with running(sandbox, "--memory", "1GiB") as program:
        assert program.facts["total"] == 8 * GIB
        program.ask(4096)
        assert program.answer() == 0
        (row,) = sandbox.status()["leases"]
        assert row["unfenced"] == "there is no C compiler (cc)"
        said = " ".join(sandbox.sublet("status", check=True).stdout.split())
        assert (
            f"of #{row['job']} TensorFlow's pool alone is held to the lease: "
            "there is no C compiler (cc)" in said
        )
        assert "the fence is not used: there is no C compiler (cc); the lease" in program.end()
    with running(sandbox, "--no-fence", "--memory", "1GiB") as program:
        (row,) = sandbox.status()["leases"]
        assert row["unfenced"] == "the fence is off (`--fence`)"
        assert "fence" not in program.end()
