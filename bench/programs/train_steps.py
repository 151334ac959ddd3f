"""Two training loops, a small CNN and a small MLP, that time each of their steps."""

import json
import sys
import time
from pathlib import Path

import keras
import tensorflow as tf
from keras import layers

WARM_UP = 10


def cnn() -> keras.Model:
    """About 20,000 parameters on 28x28 images."""
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


def mlp() -> keras.Model:
    """784-256-256-10."""
    return keras.Sequential(
        [
            keras.Input((784,)),
            layers.Dense(256, activation="relu"),
            layers.Dense(256, activation="relu"),
            layers.Dense(10),
        ]
    )


def step_times(model: keras.Model, shape: tuple[int, ...], steps: int) -> list[float]:
    """Train for so many steps on random data; seconds of each after the warm-up."""
    optimizer = keras.optimizers.Adam()
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer.build(model.trainable_variables)
    x = tf.random.normal((64, *shape))
    y = tf.random.uniform((64,), maxval=10, dtype=tf.int32)

    # TensorFlow ships no types.
    @tf.function  # type: ignore[untyped-decorator]
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    times = []
    for number in range(WARM_UP + steps):
        began = time.perf_counter()
        step().numpy()
        if number >= WARM_UP:
            times.append(time.perf_counter() - began)
    return times


def main(report: str, steps: int) -> None:
    """Time both loops and write the seconds of each step to the file `report`."""
    tf.random.set_seed(0)
    told = {
        "cnn": step_times(cnn(), (28, 28, 1), steps),
        "mlp": step_times(mlp(), (784,), steps * 4),
    }
    Path(report).write_text(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
