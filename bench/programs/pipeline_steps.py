"""Steps of a model in two even parts: `pipeline_steps.py THREADS MICRO_BATCHES STEPS`.

Each operation is computed by one thread, and so many of them at a time. Prints the seconds of each
step, as JSON.
"""

import json
import sys
import time

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import sublet

_WIDTH, _LAYERS, _BATCH = 512, 8, 512


def main(threads: int, micro_batches: int, steps: int) -> None:
    """Measure steps after two that build the graph."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(threads)

    def build() -> keras.Model:
        hidden = [layers.Dense(_WIDTH, "relu") for _ in range(_LAYERS)]
        model = keras.Sequential([layers.Input((_WIDTH,)), *hidden])
        model.compile("sgd", "mse")
        return model

    model = sublet.split(build, parts=2, batch_size=_BATCH, micro_batches=micro_batches)
    x = np.random.default_rng(0).normal(size=(_BATCH, _WIDTH)).astype("float32")
    took = []
    for _ in range(steps + 2):
        began = time.monotonic()
        model.train_on_batch(x, x)
        took.append(time.monotonic() - began)
    print(json.dumps(took[2:]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
