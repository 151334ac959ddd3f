"""A training loop that never ends and counts its steps where another process can see them.

`busy` trains without a break, `input` waits for as long as a step takes before each one, as a
program does whose data come slowly, `idle` only holds its model, and `stream` reads and writes more
memory in each step than the caches hold.
"""

import mmap
import struct
import sys
import time
from pathlib import Path

import keras
import tensorflow as tf
from keras import layers

WAIT = 0.005
"""Seconds; a step of this model takes about as long on two processors."""
_WIDE = 6 << 20
"""Numbers of four bytes each."""


def cnn() -> keras.Model:
    """The small one of `train_steps`."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def main(counter: str, kind: str) -> None:
    """Count in the first eight bytes of the file `counter`."""
    path = Path(counter)
    path.write_bytes(bytes(8))
    with path.open("r+b") as file:
        board = mmap.mmap(file.fileno(), 8)
    model = cnn()
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    x = tf.random.normal((64, 28, 28, 1))
    y = tf.random.uniform((64,), maxval=10, dtype=tf.int32)

    wide = [tf.Variable(tf.zeros(_WIDE)) for _ in range(2 if kind == "stream" else 0)]

    # TensorFlow ships no types.
    @tf.function  # type: ignore[untyped-decorator]  # TensorFlow has no types.
    def stream() -> tf.Tensor:
        """As an optimizer goes over a large table."""
        slot, table = wide
        slot.assign(slot * 0.9 + 0.1)
        return table.assign_sub(slot * 0.01)[0]

    # TensorFlow ships no types.
    @tf.function  # type: ignore[untyped-decorator]  # TensorFlow has no types.
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    count = 0
    while True:
        if kind == "input":
            time.sleep(WAIT)
        elif kind == "idle" and count:
            time.sleep(1)
            continue
        (stream() if kind == "stream" else step()).numpy()
        count += 1
        struct.pack_into("q", board, 0, count)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
