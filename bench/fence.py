"""The fence: what it adds to an allocation and its free, and how many of these a training makes.

Over the stand-in driver, which takes longer for a call than the fence does, and whose kernels are
interpreted: so the difference of two processes is taken, in processor time, and the calls of a
training are counted, not its seconds. The bar is for a step of 10 ms.
"""

import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import figures, processes
from bench.report import Bar, Result, Table
from bench.sandbox import ROOT
from sublet.client import fence_build
from sublet.formats import fence_file, fence_library
from sublet.home import Home

_GiB = 2**30
_STEP, _SHARE = 0.010, 0.01
_PATIENCE = 600
_CALLS = """
import ctypes, json, sys, time
from ctypes import byref, c_size_t, c_uint64, c_void_p
cuda = ctypes.CDLL("libcuda.so.1")
context, at, size = c_void_p(), c_uint64(), c_size_t(1 << 20)
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(byref(context), 0) == 0
cuda.cuCtxSetCurrent(context)
kept = [c_uint64() for _ in range(500)]
assert not any(cuda.cuMemAlloc_v2(byref(one), size) for one in kept)
took = []
for _ in range(int(sys.argv[1])):
    began = time.thread_time()
    for _ in range(1000):
        cuda.cuMemAlloc_v2(byref(at), size)
        cuda.cuMemFree_v2(at)
    took.append((time.thread_time() - began) / 1000)
print(json.dumps(took))
"""
_TRAINING = """
import os, sys
import tensorflow as tf
layers = tf.keras.layers
hidden = [layers.Dense(32, activation="relu") for _ in range(3)]
model = tf.keras.Sequential([layers.Input((16,)), *hidden, layers.Dense(4)])
model.compile("adam", "mse", jit_compile=False)
x, y = tf.random.normal([32, 16]), tf.random.normal([32, 4])
for step in range(int(sys.argv[1]) + 5):
    if step == 5:
        open(os.path.join(os.environ["STANDIN"], "log"), "w").close()
    model.train_on_batch(x, y)
"""


def measure(quick: bool) -> Result:
    """The calls in turns, directly and through the fence; then a training through it."""
    sys.path.append(str(ROOT / "tests"))
    standin: Any = importlib.import_module("standin")
    with tempfile.TemporaryDirectory(prefix="fence-") as name:
        root = Path(name)
        machine = standin.Machine(root / "machine", standin.Gpu(total=8 * _GiB))
        environ = {**os.environ, **machine.environ}
        os.environ["LD_LIBRARY_PATH"] = machine.environ["LD_LIBRARY_PATH"]
        fence = fence_build.find_or_build(Home(root / "home"))
        if not fence.startswith("/"):
            raise processes.Failed(f"there is no fence: {fence}")
        fence_file.create(name, fence_library.version(), 4 * _GiB, 4 * _GiB, 4 * _GiB)
        path = os.pathsep.join([fence, machine.environ["LD_LIBRARY_PATH"]])
        fenced = environ | {
            "LD_LIBRARY_PATH": path,
            "SUBLET_FENCE_FILE": str(root / fence_file.NAME),
        }
        rounds, steps = (1, 10) if quick else (4, 50)
        took: dict[str, list[float]] = {"directly": [], "through the fence": []}
        for _ in range(2 if quick else 6):
            for way, env in (("directly", environ), ("through the fence", fenced)):
                took[way] += json.loads(_run(_CALLS, rounds, env))
        _run(_TRAINING, steps, {**fenced, "TF_FORCE_GPU_ALLOW_GROWTH": "true"})
        return result(took, len(machine.log("allocated .* on GPU")) / steps)


def result(took: Mapping[str, Sequence[float]], calls: float) -> Result:
    """The table and the bar."""
    medians = {way: statistics.median(found) for way, found in took.items()}
    added = medians["through the fence"] - medians["directly"]
    rows = tuple((way, figures.seconds(median)) for way, median in medians.items())
    table = Table(
        "processor time of an allocation of 1 MiB and its free, beside 500 others",
        ("", "median"),
        (*rows, ("the fence adds", figures.seconds(max(0.0, added)))),
        (f"A training of TensorFlow allocates {calls:.2g} times in a step.",),
    )
    limit = _STEP * _SHARE
    bars = (Bar("what it adds, of 1 % of a step of 10 ms", added / limit, 1, "at most"),)
    return Result("fence", (table,), bars, {**took, "calls": [calls]})


def _run(program: str, count: int, env: Mapping[str, str]) -> str:
    words = [sys.executable, "-c", program, str(count)]
    ran = subprocess.run(
        words, env=env, capture_output=True, text=True, timeout=_PATIENCE, check=False
    )
    if ran.returncode != 0:
        raise processes.Failed(ran.stderr[-500:])
    return ran.stdout
