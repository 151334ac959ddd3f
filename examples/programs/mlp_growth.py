"""A small perceptron, in a script that sets memory growth itself, as most scripts do."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)

keras.utils.set_random_seed(2)
rng = np.random.default_rng(2)
points = rng.uniform(-1, 1, (8192, 2)).astype("float32")
inside = (np.hypot(points[:, 0], points[:, 1]) < 0.7).astype("float32")

model = keras.Sequential(
    [
        keras.layers.Input((2,)),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
history = model.fit(points, inside, batch_size=128, epochs=4, verbose=0)
print(f"accuracy {history.history['accuracy'][-1]:.3f}")
