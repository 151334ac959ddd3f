"""Strategies of `sublet.fit`: several devices and several processes give the weights of one."""

import re

import pytest

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
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.5), "mse", metrics=["mae"])
    return model


def masked():
    keras.utils.set_random_seed(3)
    inputs = layers.Input((5,), dtype="int32")
    hidden = layers.LSTM(4, return_sequences=True)(layers.Embedding(20, 4, mask_zero=True)(inputs))
    model = keras.Model(inputs, layers.Dense(5, "softmax")(hidden))
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


inside = importlib.import_module(f"{training._inside()}.training.micro_batches")
plain = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0}
for build, data, part in ((dense, (x, y), 16), (dense, (x, y), 3), (masked, (words, words % 5), 3)):
    inside.MicroBatches.most = lambda self, data, *_, part=part: part
    together = sublet.fit(build, *data, **plain, validation_data=data, strategy=sys.argv[1])
    alone = build()
    history = alone.fit(*data, **plain, validation_data=data).history
    weights = largest(alone.get_weights(), together.model.get_weights())
    shown = largest(history.values(), together.history.values())
    assert weights < 1e-5 and shown < 1e-4, (build, part, weights, shown)
    print(build.__name__, part, "differ by", weights)
shuffled = sublet.fit(noisy, x, y, epochs=2, verbose=0, strategy=sys.argv[1])
print("weights", np.concatenate([one.ravel() for one in shuffled.model.get_weights()]).sum())
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
    ran = sandbox.sublet("launch", *options, "learn.py", "mirrored", timeout=None)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("differ by") == 3


@pytest.mark.slow
def test_two_workers_give_the_weights_of_one_device(sandbox: Sandbox) -> None:
    """And stay the same, with random numbers and an order that only one of them has drawn."""
    sandbox.write("learn.py", TRAIN)
    options = ("--workers", "2", "--memory", "300MiB", "--stall", "20min")
    ran = sandbox.sublet("launch", *options, "learn.py", "multiworker", timeout=None)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("differ by") == 6
    first, second = re.findall(r"^worker [01] \| weights (.*)$", ran.stdout, re.MULTILINE)
    assert first == second


def test_logical_devices_are_there_when_a_program_starts_tensorflow(sandbox: Sandbox) -> None:
    sandbox.write("devices.py", DEVICES)
    ran = sandbox.sublet("launch", "--logical", "3", "-q", "devices.py", check=True)
    assert ran.stdout == "3 3\n"
    refused = sandbox.sublet("launch", "--logical", "2", "--workers", "2", "devices.py")
    assert "--logical N is one process in the foreground" in refused.stderr
