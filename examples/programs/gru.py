"""A GRU that remembers whether a mark came early or late in a long sequence."""

import numpy as np
from tensorflow import keras

keras.utils.set_random_seed(4)
rng = np.random.default_rng(4)
marks = rng.integers(0, 60, 1024)
sequences = rng.normal(0, 0.1, (1024, 60, 8)).astype("float32")
sequences[np.arange(1024), marks] += 1.0
late = (marks >= 30).astype("float32")

model = keras.Sequential(
    [
        keras.layers.Input((60, 8)),
        keras.layers.GRU(64, return_sequences=True),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
history = model.fit(sequences, late, batch_size=512, epochs=6, verbose=0)
print(f"accuracy {history.history['accuracy'][-1]:.2f}")
