"""What is done before the fork: it starts nothing, and a worker cannot tell that it was done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from importlib.metadata import version
from typing import Any

import pytest

from sublet.nursery import onednn

pytestmark = pytest.mark.slow

LOOK = """
import json, os, random, sys, threading, warnings
import keras, numpy as np, tensorflow as tf
from tensorflow.python.eager import context

facts = {
    "runtime": bool(context._context and context._context._initialized),
    "threads": threading.active_count(),
    "seed": context.global_seed(),
    "graph": [o.name for o in tf.compat.v1.get_default_graph().get_operations()],
    "floatx": keras.config.floatx(),
    "policy": keras.config.dtype_policy().name,
    "parallelism": [tf.config.threading.get_inter_op_parallelism_threads(),
                    tf.config.threading.get_intra_op_parallelism_threads()],
    "jit": tf.config.optimizer.get_jit(),
    "eager": tf.executing_eagerly(),
    "placement": tf.config.get_soft_device_placement(),
    "autograph": tf.autograph.get_verbosity() if hasattr(tf.autograph, "get_verbosity") else 0,
    "warnings": [f[0] for f in warnings.filters],
    "prints": sorted(np.get_printoptions().items(), key=str).__repr__(),
}
np.random.seed(1)
random.seed(1)
keras.utils.set_random_seed(7)
x = np.random.normal(size=(64, 8, 8, 1)).astype("float32")
model = keras.Sequential([
    keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(3),
])
model.compile(optimizer="adam", loss="mse")
model.fit(x, x.reshape(64, -1)[:, :3], epochs=2, verbose=0, shuffle=False)
facts["names"] = [model.name, *(layer.name for layer in model.layers), model.optimizer.name]
facts["paths"] = [weight.path for weight in model.weights]
facts["numpy"] = np.random.random()
facts["weights"] = [float(np.sum(np.float64(weight))) for weight in model.get_weights()]
"""

FRESH = LOOK + "print(json.dumps(facts))"

WARM = f"""
import json, os, sys
from sublet.nursery import nursery, onednn, preload

done = []
prepare = onednn.prepare
onednn.prepare = lambda: done.append(prepare())
preload.preload()
unsafe = nursery.unsafe_to_fork()
reading, writing = os.pipe()
if os.fork() == 0:
    scope = {{"__name__": "__main__"}}
    exec({LOOK!r}, scope)
    os.write(writing, json.dumps(scope["facts"]).encode())
    os._exit(0)
os.close(writing)
with open(reading) as file:
    facts = json.load(file)
from tensorflow.python.util import _pywrap_util_port
print(json.dumps([unsafe, done, _pywrap_util_port.IsMklEnabled(), facts]))
"""


def printed(script: str) -> Any:
    """What a fresh interpreter prints, as a nursery's environment has it."""
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    ran = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def warm() -> Any:
    return printed(WARM)


def test_forking_is_safe_after_the_preload(warm: Any) -> None:
    unsafe, *_ = warm
    assert unsafe == ""


def test_where_onednn_is_on_its_table_is_filled(warm: Any) -> None:
    """With a TensorFlow that has the functions for it, of which older ones lack one."""
    if tuple(map(int, version("tensorflow").split(".")[:2])) < (2, 20):
        pytest.skip("this TensorFlow is too old for it")
    _, done, enabled, _ = warm
    assert done == [enabled]


@pytest.mark.slow
def test_a_program_computes_and_names_the_same_as_in_a_fresh_process(warm: Any) -> None:
    """Settings, names, random numbers, and the sum of each weight to the last bit."""
    assert warm[3] == printed(FRESH)


def test_a_work_that_is_killed_is_found_out_by_a_child() -> None:
    assert not onednn.survives(lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_a_work_that_fails_is_found_out_by_a_child() -> None:
    def fail() -> None:
        raise ValueError("this TensorFlow is different")

    assert not onednn.survives(fail)


def test_a_work_that_leaves_a_thread_is_found_out_by_a_child() -> None:
    waits = threading.Event()
    assert not onednn.survives(lambda: threading.Thread(target=waits.wait, daemon=True).start())


def test_a_work_that_only_works_survives() -> None:
    assert onednn.survives(lambda: None)
