"""A model in two parts, each on a device of its own, trained as a pipeline.

With `sublet run --gpus 2 --memory 6GiB model_in_parts.py` the devices are two cards, with a lease
on each. Without a card they are two logical CPUs.
"""

import keras
import numpy as np
from keras import layers

import sublet


def build() -> keras.Model:
    inputs = layers.Input((64,))
    hidden = layers.Dense(256, "relu")(inputs)
    for _ in range(4):
        hidden = layers.Add()([hidden, layers.Dense(256, "relu")(hidden)])
    model = keras.Model(inputs, layers.Dense(1)(hidden), name="tower")
    model.compile("adam", "mse")
    return model


# A function, because devices are made before TensorFlow starts, and so before the model is built.
parts = sublet.split(build, parts=2, batch_size=128)
print(parts)

rng = np.random.default_rng(0)
x = rng.normal(size=(1024, 64)).astype("float32")
history = parts.fit(x, x[:, :1], batch_size=128, epochs=10, verbose=0)
print(f"loss {history.history['loss'][-1]:.3f}")
parts.save("tower.keras")  # A plain Keras model, with what was learned.
