"""One transformer block that learns to find the largest of 160 tokens."""

import numpy as np
from tensorflow import keras

keras.utils.set_random_seed(14)
rng = np.random.default_rng(14)
tokens = rng.integers(0, 200, (192, 160))
largest = tokens.max(axis=1) - 190

inputs = keras.layers.Input((160,), dtype="int32")
x = keras.layers.Embedding(200, 64)(inputs)
attended = keras.layers.MultiHeadAttention(num_heads=4, key_dim=16)(x, x)
x = keras.layers.LayerNormalization()(x + attended)
x = keras.layers.LayerNormalization()(x + keras.layers.Dense(64, "relu")(x))
outputs = keras.layers.Dense(10)(keras.layers.GlobalMaxPooling1D()(x))

model = keras.Model(inputs, outputs)
model.compile(
    keras.optimizers.Adam(0.003), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
)
history = model.fit(tokens, np.clip(largest, 0, 9), batch_size=96, epochs=2, verbose=0)
print(f"loss {history.history['loss'][0]:.2f} -> {history.history['loss'][-1]:.2f}")
