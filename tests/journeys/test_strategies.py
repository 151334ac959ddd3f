"""Strategies of `sublet.fit`: several devices and several processes give the weights of one."""

import re
from collections.abc import Callable

import pytest

from standin import Gpu, Machine
from support.sandbox import Sandbox

TRAIN = """
import importlib
import sys
import keras
import numpy as np
from keras import layers
import sublet
from sublet.client import training

ROWS = 43
rng = np.random.default_rng(0)
x, y = rng.normal(size=(ROWS, 6)).astype("f"), rng.normal(size=(ROWS, 1)).astype("f")
words = rng.integers(1, 20, (ROWS, 5))
for row in range(ROWS):
    words[row, 1 + row % 5 :] = 0


def dense():
    keras.utils.set_random_seed(3)
    hidden = layers.Dense(8, "relu", kernel_regularizer="l2", activity_regularizer="l2")
    model = keras.Sequential([layers.Input((6,)), hidden, layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.5)
    model.compile(optimizer, "mse", metrics=["mae"], jit_compile=False)
    return model


def masked():
    keras.utils.set_random_seed(3)
    inputs = layers.Input((5,), dtype="int32")
    embedded = layers.Embedding(20, 4, mask_zero=True)(inputs)
    model = keras.Model(inputs, layers.Dense(5, "softmax")(embedded))
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def noisy():
    keras.utils.set_random_seed(3)
    hidden = [layers.Dense(8), layers.BatchNormalization(), layers.Dropout(0.5)]
    model = keras.Sequential([layers.Input((6,)), *hidden, layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def largest(one, other):
    return max(float(np.max(np.abs(np.subtract(a, b)))) for a, b in zip(one, other, strict=True))


inside = importlib.import_module(f"{training.inside_package()}.training.micro_batches")
plain = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0}
trainings = [(dense, (x, y), 3), (dense, (x, y), 16), (masked, (words, words % 5), 3)]
for build, data, part in trainings[: int(sys.argv[2])]:
    inside.MicroBatches.most = lambda self, data, *_, part=part: part
    together = sublet.fit(build, *data, **plain, validation_data=data, strategy=sys.argv[1])
    alone = build()
    history = alone.fit(*data, **plain, validation_data=data).history
    weights = largest(alone.get_weights(), together.model.get_weights())
    shown = largest(history.values(), together.history.values())
    assert weights < 1e-5 and shown < 1e-4, (build, part, weights, shown)
    print(build.__name__, part, "differ by", weights)
if sys.argv[2] == "1":
    sys.exit()
shuffled = sublet.fit(noisy, x, y, epochs=2, verbose=0, strategy=sys.argv[1])
print("weights", np.concatenate([one.ravel() for one in shuffled.model.get_weights()]).sum())
"""

PREEMPTED = """
import json
import os
import signal
import sys
import keras
import numpy as np
from keras import layers
import sublet

strategy, victim = sys.argv[1:]
x = np.random.default_rng(0).normal(size=(40, 6)).astype("f")


def build():
    keras.utils.set_random_seed(1)
    hidden = [layers.Dense(8), layers.Dropout(0.5)]
    model = keras.Sequential([layers.Input((6,)), *hidden, layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def end(step, logs):
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    here = f"{task['type']} {task['index']}"
    if here == victim and step == 1 and not os.path.exists("preempted"):
        open("preempted", "w").close()
        os.kill(os.getpid(), signal.SIGTERM)


def fit(path, *callbacks):
    options = {"batch_size": 12, "epochs": 2, "verbose": 0, "callbacks": list(callbacks)}
    data = {"x": x, "y": x[:, :1], "strategy": strategy, "checkpoint": path}
    return sublet.fit(build, **data, **options).model.get_weights()


whole = fit("whole")
parts = fit("parts", keras.callbacks.LambdaCallback(on_train_batch_end=end))
print("equal", all(one.tobytes() == other.tobytes() for one, other in zip(whole, parts)))
"""

DEVICES = """
import tensorflow as tf
strategy = tf.distribute.MirroredStrategy()
print(len(tf.config.list_logical_devices("CPU")), strategy.num_replicas_in_sync)
"""


@pytest.mark.slow
def test_two_logical_devices_give_the_weights_of_one(sandbox: Sandbox) -> None:
    """Also with micro-batches, masks, a last batch that cannot be halved, clipping."""
    sandbox.write("learn.py", TRAIN)
    options = ("--logical", "2", "--memory", "300MiB", "-q")
    ran = sandbox.sublet("launch", *options, "learn.py", "mirrored", "3", timeout=None)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("differ by") == 3


@pytest.mark.slow
def test_two_cards_give_the_weights_of_one_device(
    new_sandbox: Callable[..., Sandbox], new_machine: Callable[..., Machine]
) -> None:
    """In micro-batches, too; and one card can be two logical devices."""
    machine = new_machine(Gpu(uuid="GPU-a", total=4 << 30), Gpu(uuid="GPU-b", total=4 << 30))
    sandbox = new_sandbox(**machine.environ)
    sandbox.write("learn.py", TRAIN)
    cards = sandbox.sublet("run", "--gpus", "2", "learn.py", "mirrored", "1", timeout=None)
    assert cards.stdout.startswith("dense 3 differ by "), cards.stderr
    sandbox.write("devices.py", DEVICES.replace('"CPU"', '"GPU"'))
    options = ("--logical", "2", "--memory", "1GiB", "-q")
    assert sandbox.sublet("launch", *options, "devices.py", check=True).stdout == "2 2\n"
    assert not machine.refusals()


@pytest.mark.slow
def test_two_workers_give_the_weights_of_one_device(sandbox: Sandbox) -> None:
    """And stay the same, with random numbers and an order that only one of them has drawn."""
    sandbox.write("learn.py", TRAIN)
    options = ("--workers", "2", "--memory", "300MiB", "--stall", "20min")
    ran = sandbox.sublet("launch", *options, "learn.py", "multiworker", "3", timeout=None)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("differ by") == 6
    first, second = re.findall(r"^worker [01] \| weights (.*)$", ran.stdout, re.MULTILINE)
    assert first == second


@pytest.mark.slow
def test_workers_of_which_one_is_preempted_go_on_together(sandbox: Sandbox) -> None:
    """All stop after the same step, the first one saves, and the result is the same, bit by bit."""
    sandbox.write("learn.py", PREEMPTED)
    options = ("--workers", "2", "--memory", "300MiB", "--stall", "20min")
    words = ("learn.py", "multiworker", "worker 1")
    ran = sandbox.sublet("launch", *options, *words, timeout=None)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "worker 0 | sublet: going on from parts: epoch 1, step " in ran.stdout
    assert sorted(re.findall(r"^worker ([01]) \| equal True$", ran.stdout, re.MULTILINE)) == [
        "0",
        "1",
    ]


@pytest.mark.slow
def test_parameter_servers_give_the_weights_of_one_device(sandbox: Sandbox) -> None:
    """The chief trains as if the devices of its workers were its own."""
    sandbox.write("learn.py", TRAIN)
    options = ("--chief", "1", "--workers", "2", "--ps", "2", "--memory", "300MiB")
    ran = sandbox.sublet("launch", *options, "learn.py", "parameter-server", "3", timeout=None)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("differ by") == 3
    alone = sandbox.sublet("run", "learn.py", "parameter-server", "1")
    assert "sublet launch --chief 1 --workers 2 --ps 1" in alone.stderr


@pytest.mark.slow
def test_servers_last_until_their_chief_has_saved(sandbox: Sandbox) -> None:
    """A chief that is preempted goes on with new servers, and ends as if nothing had happened."""
    sandbox.write("learn.py", PREEMPTED)
    options = ("--chief", "1", "--workers", "1", "--ps", "1", "--memory", "300MiB")
    words = ("learn.py", "parameter-server", "chief 0")
    ran = sandbox.sublet("launch", *options, *words, timeout=None)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "chief 0  | sublet: going on from parts: epoch 1, step " in ran.stdout
    assert "chief 0  | equal True" in ran.stdout


def test_logical_devices_are_there_when_a_program_starts_tensorflow(sandbox: Sandbox) -> None:
    sandbox.write("devices.py", DEVICES)
    ran = sandbox.sublet("launch", "--logical", "3", "-q", "devices.py", check=True)
    assert ran.stdout == "3 3\n"
    refused = sandbox.sublet("launch", "--logical", "2", "--workers", "2", "devices.py")
    assert "--logical N is one process in the foreground" in refused.stderr
