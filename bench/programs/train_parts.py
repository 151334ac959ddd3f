"""A model of large tables: `train_parts.py whole|parts MIB RECORD`, of so many MiB in all.

The tables are not trained, as a stand-in for a GPU would take minutes for that; layers between
them are.

Whole, it is plain Keras. In parts it is built in the memory of the host, and split over two GPUs.
RECORD.npz gets the weights, RECORD.json the most that was in use of each GPU.
"""

import json
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

_ROWS, _BATCH = 48, 32
_WIDTH, _ENTRIES = 64, 2**15
"""Of a table of 8 MiB, which wastes nothing in the regions that a pool takes of a card."""


def _build(tables: int) -> Any:
    word, thing = layers.Input((), dtype="int32"), layers.Input((_WIDTH,))
    hidden = layers.Embedding(_ENTRIES, _WIDTH, trainable=False)(word)
    for _ in range(tables - 1):
        row = layers.Embedding(_ENTRIES, _WIDTH, trainable=False)(word)
        hidden = layers.Add()([hidden, row, layers.Dense(_WIDTH, "relu")(hidden)])
    hidden = layers.Concatenate()([hidden, thing])
    model = keras.Model([word, thing], layers.Dense(1)(hidden))
    model.compile(keras.optimizers.SGD(2e-4), "mse", metrics=["mae"], jit_compile=False)
    return model


def main(way: str, size: str, record: str) -> None:
    """Train for two steps; the batch of the last one is short."""
    tables = int(size) // 8
    keras.utils.set_random_seed(1)
    if way == "parts":
        import sublet

        model = sublet.split(lambda: _build(tables), parts=2, batch_size=_BATCH, micro_batches=2)
        print(model)
    else:
        model = _build(tables)
    rng = np.random.default_rng(0)
    words = rng.integers(0, _ENTRIES, _ROWS)
    x = [words, rng.normal(size=(_ROWS, _WIDTH)).astype("float32")]
    y = rng.normal(size=(_ROWS, 1)).astype("float32")
    model.fit(x, y, batch_size=_BATCH, shuffle=False, verbose=0)
    np.savez(f"{record}.npz", *(one.numpy() for one in model.trainable_weights))
    gpus = [device.name[-5:] for device in tf.config.list_logical_devices("GPU")]
    peaks = [tf.config.experimental.get_memory_info(name)["peak"] for name in gpus]
    with open(f"{record}.json", "w", encoding="utf-8") as file:
        json.dump(peaks, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
