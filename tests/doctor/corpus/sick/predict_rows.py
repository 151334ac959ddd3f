import time

import keras
import numpy as np

model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
rows = np.random.rand(40, 4)
model.predict(rows, verbose=0)
began = time.monotonic()
for row in rows:
    model.predict(np.expand_dims(row, 0), verbose=0)
one_by_one = time.monotonic() - began
began = time.monotonic()
model.predict(rows, verbose=0)
assert one_by_one < 3 * (time.monotonic() - began), one_by_one
