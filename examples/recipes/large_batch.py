"""A batch that does not fit its lease, trained in micro-batches: the weights are the same."""

import sublet

# Before TensorFlow starts, so before these imports; 256 rows of this model need more.
sublet.lease("96MiB")

import keras  # noqa: E402
import numpy as np  # noqa: E402
from keras import layers  # noqa: E402

model = keras.Sequential(
    [
        layers.Input((512, 16)),
        layers.Dense(64, "relu"),
        layers.Dense(64, "relu"),
        layers.GlobalAveragePooling1D(),
        layers.Dense(1),
    ]
)
model.compile("adam", "mse")
rng = np.random.default_rng(0)
x = rng.normal(size=(512, 512, 16)).astype("float32")
history = sublet.fit(model, x, x[:, 0, :1], batch_size=256, epochs=2, verbose=0)
print(f"loss {history.history['loss'][-1]:.3f}")
