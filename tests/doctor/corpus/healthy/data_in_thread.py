import queue
import threading

import keras
import numpy as np

batches = queue.Queue(4)


def produce():
    rng = np.random.default_rng(1)
    for _ in range(8):
        batches.put(rng.normal(size=[16, 4]))


threading.Thread(target=produce, daemon=True).start()
model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
model.compile("sgd", "mse")
for _ in range(8):
    rows = batches.get()
    model.train_on_batch(rows, rows[:, :1])
