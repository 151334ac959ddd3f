"""Steps of a convolutional network on large pictures: activations of some hundred MiB each."""

import keras
import numpy as np

model = keras.Sequential(
    [
        keras.Input((160, 160, 3)),
        keras.layers.Conv2D(24, 3, padding="same", activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.MaxPooling2D(4),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(5),
    ]
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
pictures = np.random.default_rng(1).random((96, 160, 160, 3), dtype=np.float32)
model.fit(pictures, np.arange(96) % 5, batch_size=48, epochs=1, verbose=2)
