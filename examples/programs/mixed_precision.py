"""A dense network in bfloat16 with float32 weights."""

import numpy as np
from tensorflow import keras

keras.mixed_precision.set_global_policy("mixed_bfloat16")
keras.utils.set_random_seed(13)
rng = np.random.default_rng(13)
rows = rng.normal(0, 1, (2048, 64)).astype("float32")
labels = (rows[:, :8].sum(axis=1) > 0).astype("float32")

model = keras.Sequential(
    [
        keras.layers.Input((64,)),
        keras.layers.Dense(256, "relu"),
        keras.layers.Dense(256, "relu"),
        keras.layers.Dense(1, "sigmoid", dtype="float32"),
    ]
)
model.compile(keras.optimizers.Adam(0.003), "binary_crossentropy", metrics=["accuracy"])
history = model.fit(rows, labels, batch_size=256, epochs=3, verbose=0)
print(f"accuracy {history.history['accuracy'][-1]:.2f}")
