"""`fit` on arrays that become one large tensor: it waits for memory with Python's lock held."""

import keras
import numpy as np

rows = np.random.default_rng(2).random((150_000, 1024), dtype=np.float32)
model = keras.Sequential([keras.Input((1024,)), keras.layers.Dense(4)])
model.compile("sgd", "mse")
model.fit(rows, np.zeros((len(rows), 4), np.float32), batch_size=8192, verbose=2)
