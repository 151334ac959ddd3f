"""A training that may be interrupted at any time: `sublet submit --opportunistic`.

SIGTERM has it save its work and exit with 42, so the queue starts it again; kill -9 loses what came
after the last checkpoint. Either way it ends as if nothing had happened.
"""

import keras
import numpy as np
from keras import layers

import sublet

keras.utils.set_random_seed(1)
model = keras.Sequential([layers.Input((16,)), layers.Dense(64, "relu"), layers.Dense(1)])
model.compile("adam", "mse")
x = np.random.default_rng(0).normal(size=(1024, 16)).astype("float32")
history = sublet.fit(
    model,
    x,
    x[:, :1] * x[:, 1:2],
    batch_size=64,
    epochs=5,
    validation_split=0.2,
    callbacks=[keras.callbacks.EarlyStopping(patience=3)],
    checkpoint="preempted_training/",
    checkpoint_every=50,
    verbose=0,
)
print(f"loss {history.history['val_loss'][-1]:.3f} after {len(history.epoch)} epochs")
