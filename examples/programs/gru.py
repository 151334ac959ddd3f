"""A GRU that remembers, at the end of a long sequence, whether its one mark was up or down."""

import numpy as np
from tensorflow import keras

keras.utils.set_random_seed(4)
rng = np.random.default_rng(4)
up = rng.integers(0, 2, 1024)
sequences = rng.normal(0, 0.1, (1024, 60, 8)).astype("float32")
sequences[np.arange(1024), rng.integers(0, 60, 1024)] += (2.0 * up - 1.0)[:, None]

model = keras.Sequential(
    [
        keras.layers.Input((60, 8)),
        keras.layers.GRU(64, return_sequences=True),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
history = model.fit(sequences, up, batch_size=512, epochs=4, verbose=0)
print(f"accuracy {history.history['accuracy'][-1]:.2f}")
