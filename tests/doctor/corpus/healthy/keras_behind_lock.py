import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np

model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
lock = threading.Lock()


def answer(number):
    with lock:
        return float(model.predict(np.full([1, 4], number), verbose=0)[0, 0])


with ThreadPoolExecutor(4) as pool:
    print(sum(pool.map(answer, range(8))))
