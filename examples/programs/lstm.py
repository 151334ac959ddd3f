"""An LSTM that continues a noisy sine."""

import numpy as np
from tensorflow import keras

keras.utils.set_random_seed(3)
rng = np.random.default_rng(3)
wave = np.sin(np.arange(1300) / 9.0) + rng.normal(0, 0.05, 1300)
windows = np.lib.stride_tricks.sliding_window_view(wave.astype("float32"), 41)
past, after = windows[:, :40, None], windows[:, 40]

model = keras.Sequential(
    [keras.layers.Input((40, 1)), keras.layers.LSTM(48), keras.layers.Dense(1)]
)
model.compile(keras.optimizers.Adam(0.01), "mse")
history = model.fit(past, after, batch_size=64, epochs=2, verbose=0)
print(f"squared error {history.history['loss'][-1]:.3f}")
