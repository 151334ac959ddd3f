"""Two training loops, a small CNN and a small MLP, that run blocks of steps when they are asked."""

import sys
import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import layers
from tensorflow.python.eager import context

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


def stepper(model: keras.Model, shape: tuple[int, ...]) -> Callable[[], object]:
    """A function that trains for one step on random data; warmed up."""
    optimizer = keras.optimizers.Adam()
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer.build(model.trainable_variables)
    x = tf.random.normal((64, *shape))
    y = tf.random.uniform((64,), maxval=10, dtype=tf.int32)

    # TensorFlow ships no types.
    # TensorFlow ships no types.
    @tf.function  # type: ignore[untyped-decorator]  # TensorFlow has no types.
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    for _ in range(WARM_UP):
        step().numpy()
    return lambda: step().numpy()


def let_threads_sleep() -> None:
    """What a lease sets for its neighbours' sake, set without one."""
    config_of = context.Context.config.fget

    def config(self: Any) -> Any:
        proto = config_of(self)
        proto.experimental.disable_thread_spinning = True
        return proto

    context.Context.config = property(config)


def main(asks: str, answers: str, sleepy: str = "") -> None:
    """Run a block of steps for each line of `asks`, a model and a number; answer with the seconds
    of a step, on the clock and on processors."""
    if sleepy:
        let_threads_sleep()
    tf.random.set_seed(0)
    steps = {"cnn": stepper(cnn(), (28, 28, 1)), "mlp": stepper(mlp(), (784,))}
    with open(asks) as turns, open(answers, "w") as replies:
        print("ready", file=replies, flush=True)
        for turn in turns:
            model, _, count = turn.partition(" ")
            step = steps[model]
            clock, processors = time.perf_counter(), time.process_time()
            for _ in range(int(count)):
                step()
            clock = time.perf_counter() - clock
            processors = time.process_time() - processors
            print(clock / int(count), processors / int(count), file=replies, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
