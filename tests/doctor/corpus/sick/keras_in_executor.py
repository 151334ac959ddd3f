from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

model = tf.keras.models.Sequential([tf.keras.layers.Dense(4), tf.keras.layers.Dense(1)])


def answer(number):
    return float(model.predict(np.full([1, 4], number), verbose=0)[0, 0])


with ThreadPoolExecutor(16) as pool:
    print(sum(pool.map(answer, range(64))))
