"""Write SavedModels with random weights, each in a version directory: `exports.py DIRECTORY NAME…`.

Beside each, an `example.json`: a row, and what the model answers to it.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np

INPUT = "x"


def mlp() -> keras.Model:
    """784-512-512-10: the model of the serving benchmarks."""
    return _dense(784, [512, 512])


def paged() -> keras.Model:
    """About 8 MiB of weights: one of many."""
    return _dense(784, [1024, 1024, 256])


def wide() -> keras.Model:
    """Milliseconds for one row, and hardly more for a few: its weights are what is read."""
    return _dense(64, [1024] * 40)


def images() -> keras.Model:
    """Large input, little work: the mean colour of 224x224 images."""
    pixels = keras.Input((224, 224, 3), name=INPUT)
    mean = keras.layers.GlobalAveragePooling2D()(pixels)
    return keras.Model(pixels, keras.layers.Dense(10)(mean))


def _dense(inputs: int, widths: list[int]) -> keras.Model:
    row = keras.Input((inputs,), name=INPUT)
    hidden = row
    for width in widths:
        hidden = keras.layers.Dense(width, activation="relu")(hidden)
    return keras.Model(row, keras.layers.Dense(10)(hidden))


KINDS: dict[str, Callable[[], keras.Model]] = {
    one.__name__: one for one in (mlp, paged, wide, images)
}


def main(directory: str, *names: str) -> None:
    """Export all models, with an example for each."""
    keras.utils.set_random_seed(0)
    for name in names:
        model = KINDS[name]()
        place = Path(directory, name)
        model.export(place / "1", verbose=False)
        shape = model.inputs[0].shape[1:]
        row = np.random.default_rng(1).random((1, *shape), "float32").round(4)
        example = {"expected": np.asarray(model(row))[0].tolist()}
        if row.size < 2000:
            example["row"] = [round(float(value), 4) for value in row.ravel()]
        (place / "example.json").write_text(json.dumps(example))


if __name__ == "__main__":
    main(*sys.argv[1:])
