"""Trainings of Keras models as one and alone, for bench/stacks.py: prints what it finds, as JSON.

stack_trainings.py equal MODEL OPTIMIZER
stack_trainings.py speed MODEL COUNT FITTED
stack_trainings.py cost COUNT
stack_trainings.py grid WIDTH BATCH COUNT
"""

import json
import sys
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from sublet.inside.stacks.batches import Batches
from sublet.inside.stacks.difference import difference, output_difference
from sublet.inside.stacks.group import serial, stacks
from sublet.inside.stacks.probe import probe

EPOCHS, SEED = 5, 3
MODELS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "MLP": (lambda: [layers.Dense(64, "relu"), layers.Dense(64, "relu")], (32,)),
    "CNN": (
        lambda: [
            layers.Conv2D(8, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Flatten(),
        ],
        (16, 16, 1),
    ),
    "LSTM": (lambda: [layers.LSTM(16)], (12, 8)),
    "LayerNorm": (lambda: [layers.Dense(32), layers.LayerNormalization(), layers.ReLU()], (16,)),
    "BatchNorm": (lambda: [layers.Dense(32), layers.BatchNormalization(), layers.ReLU()], (16,)),
}
ROWS = {"MLP": 4096, "CNN": 1024}


def data(shape: tuple[int, ...], rows: int) -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(rows, *shape)).astype("float32")
    return x, np.tanh(x.reshape(rows, -1)[:, :1]) + 0.1 * draw.normal(size=(rows, 1))


def attention() -> Any:
    given = keras.Input((8, 6))
    x = layers.LayerNormalization()(given + layers.MultiHeadAttention(2, 3)(given, given))
    return keras.Model(given, layers.Dense(1)(layers.Flatten()(x)))


def build(kind: str, number: int, optimizer: str = "adam") -> Any:
    keras.utils.set_random_seed(number)
    if kind == "attention":
        model = attention()
    else:
        inside, shape = MODELS[kind]
        model = keras.Sequential([layers.Input(shape), *inside(), layers.Dense(1)])
    rate = 0.001 * (1 + number % 7)
    kind_of = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}[optimizer]
    model.compile(kind_of(rate), "mse")
    return model


def equal(kind: str, optimizer: str) -> Any:
    """How far three models in a stack are from the same alone, after five epochs."""
    x, y = data(MODELS[kind][1] if kind in MODELS else (8, 6), 320)
    models = [build(kind, number, optimizer) for number in range(3)]
    batches = Batches(x, y, batch_size=32, seed=SEED)
    trainer = stacks(models, batches)
    for _ in range(EPOCHS):
        trainer.train_epoch(batches)
    trainer.write_back()
    weights, outputs = 0.0, 0.0
    for number, model in enumerate(models):
        alone = build(kind, number, optimizer)
        tf.random.set_seed(SEED)
        alone.fit(x, y, batch_size=32, epochs=EPOCHS, verbose=0)
        weights = max(weights, difference(model, alone))
        outputs = max(outputs, output_difference(model, alone, x, training=True))
    return weights, outputs


def speed(kind: str, count: int, fitted: int) -> Any:
    """Seconds of `fit` one after another, for each model, and of all as one, building included."""
    x, y = data(MODELS[kind][1], ROWS[kind])
    size = 64 if kind == "MLP" else 32
    build(kind, 0).fit(x[:size], y[:size], batch_size=size, verbose=0)
    began = time.perf_counter()
    for number in range(fitted):
        build(kind, number).fit(x, y, batch_size=size, epochs=EPOCHS, verbose=0)
    alone = (time.perf_counter() - began) / fitted
    began = time.perf_counter()
    batches = Batches(x, y, batch_size=size)
    trainer = stacks([build(kind, number) for number in range(count)], batches)
    for _ in range(EPOCHS):
        trainer.train_epoch(batches)
    trainer.write_back()
    return alone, time.perf_counter() - began


def cost(count: int) -> Any:
    """Seconds of an epoch for each model of a stack of so many, when all is traced."""
    x, y = data((32,), 4096)
    batches = Batches(x, y, batch_size=64)
    trainer = stacks([build("MLP", number) for number in range(count)], batches)
    trainer.train_epoch(batches)
    return _epoch(trainer, batches) / count


def grid(width: int, size: int, count: int) -> Any:
    """What a probe chooses for 50 epochs, and their seconds in both ways, tracing included."""
    x, y = data((32,), max(2048, 2 * size))

    def made(number: int) -> Any:
        keras.utils.set_random_seed(number)
        hidden = [layers.Dense(width, "relu") for _ in range(2)]
        model = keras.Sequential([layers.Input((32,)), *hidden, layers.Dense(1)])
        model.compile("adam", "mse")
        return model

    models = [made(number) for number in range(count)]
    batches = Batches(x, y, batch_size=size)
    found = probe(models, batches, epochs=50)
    makers: dict[str, Any] = {
        "fused": lambda: stacks(models, batches),
        "serial": lambda: serial([made(number) for number in range(count)]),
    }
    ways: dict[str, Any] = {}
    first: dict[str, float] = {}
    for way, make in makers.items():
        began = time.perf_counter()
        ways[way] = make()
        ways[way].train_epoch(batches)
        first[way] = time.perf_counter() - began
    epochs = dict.fromkeys(ways, float("inf"))
    for _ in range(3):
        for way, trainer in ways.items():
            epochs[way] = min(epochs[way], _epoch(trainer, batches))
    seconds = {way: first[way] + 49 * epochs[way] for way in ways}
    return found.choice, seconds


def _epoch(trainer: Any, batches: Batches) -> float:
    began = time.perf_counter()
    trainer.train_epoch(batches)
    return time.perf_counter() - began


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    arguments = [int(word) if word.isdigit() else word for word in words]
    print(json.dumps(globals()[what](*arguments)))
