import time

import numpy as np
from tensorflow import keras


class Player:
    def __init__(self):
        self.model = keras.models.Sequential([keras.Input([4]), keras.layers.Dense(2)])

    def act(self, state):
        return int(np.argmax(self.model.predict(state[np.newaxis], verbose=0)))

    def play(self, steps):
        state = np.zeros(4)
        for _ in range(steps):
            state = state + self.act(state)
        return state


player = Player()
player.play(1)
began = time.monotonic()
player.play(20)
predicted = time.monotonic() - began
began = time.monotonic()
for _ in range(20):
    player.model(np.zeros([1, 4]), training=False)
assert predicted < 3 * (time.monotonic() - began), predicted
