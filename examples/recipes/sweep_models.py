"""Twelve small models, trained as one; the worse ones leave early."""

import keras
import numpy as np

import sublet
from sublet.sweeps import halving

x = np.linspace(-1, 1, 256, dtype="float32")[:, None]
y = np.sin(3 * x)


def build_model(rate: float, momentum: float) -> keras.Model:
    layers = [keras.Input((1,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(rate, momentum), "mse")
    return model


result = sublet.sweep(
    build_model,
    space={"rate": [0.3, 0.1, 0.01], "momentum": [0.0, 0.9], "seed": range(2)},
    data=(x, y),
    epochs=9,
    search=halving(eta=3),
)
print(result.table())
best = result.best
print(f"{len(result.trials)} trials, best loss {best.value:.3f} with {best.params}")
best.model.save("best.keras")
