"""A wide dense autoencoder; most of its memory is weights and their Adam moments."""

import numpy as np
from tensorflow import keras

keras.utils.set_random_seed(5)
rng = np.random.default_rng(5)
basis = rng.normal(0, 1, (12, 1536)).astype("float32")
rows = np.tanh(rng.normal(0, 0.3, (1024, 12)).astype("float32") @ basis)

model = keras.Sequential(
    [
        keras.layers.Input((1536,)),
        keras.layers.Dense(1024, activation="relu"),
        keras.layers.Dense(32),
        keras.layers.Dense(1024, activation="relu"),
        keras.layers.Dense(1536),
    ]
)
model.compile(keras.optimizers.Adam(0.0005), "mse")
history = model.fit(rows, rows, batch_size=128, epochs=3, verbose=0)
print(f"error {history.history['loss'][-1]:.3f}")
