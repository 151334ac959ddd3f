"""One model, called by several processes: one copy in memory, and no TensorFlow in the callers.

python examples/serving/shared_model.py
"""

import multiprocessing
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import sublet


@sublet.task(memory="256MiB")
def export(path: str) -> None:
    """Make a SavedModel; in a worker, so that TensorFlow stays out of this process."""
    import keras

    model = keras.Sequential([keras.Input((784,)), keras.layers.Dense(10, activation="softmax")])
    model.export(path, verbose=False)


def classify(seed: int) -> list[int]:
    """What any process of this user on this machine can do."""
    digits = sublet.connect("digits")
    rows = np.random.default_rng(seed).random((4, 784), dtype=np.float32)
    scores: Any = digits(rows)
    assert "tensorflow" not in sys.modules
    return scores.argmax(axis=1).tolist()  # type: ignore[no-any-return]  # NumPy says Any.


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory, "digits"))
        export(path)
        with sublet.Engine(memory="256MiB") as engine:
            engine.load("digits", path, max_batch_size=32)
            with multiprocessing.get_context("spawn").Pool(3) as callers:
                for seed, classes in enumerate(callers.map(classify, range(3))):
                    print(f"process {seed} got the classes {classes}")
            (row,) = engine.models()
            print(f"{row['requests']} requests in {row['batches']} batches")


if __name__ == "__main__":
    main()
