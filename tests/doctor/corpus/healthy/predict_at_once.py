import keras
import numpy as np

model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
for part in range(3):
    print(part, model.predict(np.random.rand(64, 4), verbose=0).mean())
for row in np.random.rand(8, 4):
    print(model(row[None], training=False).numpy())
