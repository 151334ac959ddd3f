"""A short Keras job: one operation, then a Dense layer fitted to a thousand rows."""

import signal
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf


def main(stamp: str, idle: str | None = None) -> None:
    """Leave the time of the first operation in the file `stamp`, then build and fit.

    With `idle`, leave a file of that name after the fit and stay, like a notebook left open.
    """
    (tf.constant(1.0) + 1.0).numpy()
    now = time.monotonic_ns()
    Path(stamp).write_text(str(now))
    random = np.random.default_rng(0)
    x = random.normal(size=(1000, 10)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    model = keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
    model.fit(x, y, epochs=5, verbose=0)
    if idle is not None:
        Path(idle).touch()
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
