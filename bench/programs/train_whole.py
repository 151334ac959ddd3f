"""A plain Keras training: `train_whole.py MODEL OPTIMIZER ROWS BATCH RECORD [turned]`.

It knows nothing of leases. RECORD.npz gets the weights, RECORD.json the seconds of each epoch.
"""

import json
import sys
import time
from typing import Any

import keras
import numpy as np
from keras import layers

_EPOCHS = 3


def _attention() -> tuple[Any, tuple[int, ...]]:
    inputs = layers.Input((128, 16))
    hidden = layers.Dense(64)(inputs)
    hidden = layers.LayerNormalization()(hidden + layers.MultiHeadAttention(4, 16)(hidden, hidden))
    hidden = layers.GlobalAveragePooling1D()(layers.Dense(64, "relu")(hidden))
    return keras.Model(inputs, layers.Dense(4, "softmax")(hidden)), (128, 16)


def _build(name: str) -> tuple[Any, tuple[int, ...]]:
    """A model, and the shape of its rows."""
    if name == "attention":
        return _attention()
    shapes: dict[str, tuple[int, ...]] = {"mlp": (256,), "cnn": (48, 48, 3), "lstm": (64, 16)}
    inner: dict[str, list[Any]] = {
        "mlp": [layers.Dense(256, "relu") for _ in range(6)],
        "cnn": [
            layers.Conv2D(16, 3, activation="relu"),
            layers.Conv2D(16, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
        ],
        "lstm": [layers.LSTM(64, return_sequences=True), layers.LSTM(32)],
    }
    shape = shapes[name]
    last = layers.Dense(4, "softmax")
    return keras.Sequential([layers.Input(shape), *inner[name], last]), shape


class _Times(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types.
    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, *_: Any) -> None:
        self._began = time.monotonic()

    def on_epoch_end(self, *_: Any) -> None:
        self.seconds.append(time.monotonic() - self._began)


def main(name: str, optimizer: str, rows: str, batch: str, record: str, turned: str = "") -> None:
    """Train for three epochs of so many rows; `turned`, with those of each batch in another order:
    the same but for rounding."""
    keras.utils.set_random_seed(1)
    model, shape = _build(name)
    rates = {"sgd": keras.optimizers.SGD(0.05), "adam": keras.optimizers.Adam(0.001)}
    model.compile(rates[optimizer], "sparse_categorical_crossentropy", metrics=["accuracy"])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(int(rows), *shape)).astype("float32")
    y = rng.integers(0, 4, int(rows))
    if turned:
        places = np.arange(int(rows))
        ends = range(int(batch), int(rows), int(batch))
        places = np.concatenate([one[::-1] for one in np.split(places, ends)])
        x, y = x[places], y[places]
    times = _Times()
    model.fit(
        *(x, y), batch_size=int(batch), epochs=_EPOCHS, shuffle=False, verbose=0, callbacks=[times]
    )
    np.savez(f"{record}.npz", *model.get_weights())
    with open(f"{record}.json", "w", encoding="utf-8") as file:
        json.dump(times.seconds, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
