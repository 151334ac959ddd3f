"""A recommender with a large embedding table; the table and its moments are most of the memory."""

import numpy as np
from tensorflow import keras

keras.utils.set_random_seed(15)
rng = np.random.default_rng(15)
ITEMS = 200_000
pairs = rng.integers(0, ITEMS, (4096, 2))
liked = ((pairs[:, 0] % 7) == (pairs[:, 1] % 7)).astype("float32")

first = keras.layers.Input((), dtype="int32")
second = keras.layers.Input((), dtype="int32")
table = keras.layers.Embedding(ITEMS, 64)
score = keras.layers.Dot(axes=1)([table(first), table(second)])
model = keras.Model([first, second], keras.layers.Activation("sigmoid")(score))
model.compile(keras.optimizers.SGD(0.5, momentum=0.9), "binary_crossentropy")
history = model.fit([pairs[:, 0], pairs[:, 1]], liked, batch_size=512, epochs=1, verbose=0)
print(f"loss {history.history['loss'][-1]:.3f}")
