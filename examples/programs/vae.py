"""A variational autoencoder with a training loop of its own."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

keras.utils.set_random_seed(6)
rng = np.random.default_rng(6)
centres = rng.normal(0, 1, (5, 256)).astype("float32")
rows = centres[rng.integers(0, 5, 2048)] + rng.normal(0, 0.1, (2048, 256)).astype("float32")

encoder = keras.Sequential(
    [keras.layers.Input((256,)), keras.layers.Dense(128, "relu"), keras.layers.Dense(2 * 8)]
)
decoder = keras.Sequential(
    [keras.layers.Input((8,)), keras.layers.Dense(128, "relu"), keras.layers.Dense(256)]
)
optimizer = keras.optimizers.Adam(0.002)
weights = encoder.trainable_variables + decoder.trainable_variables
optimizer.build(weights)


def train_step(x: tf.Tensor) -> tf.Tensor:
    """One step on the evidence lower bound."""
    with tf.GradientTape() as tape:
        mean, log_variance = tf.split(encoder(x), 2, axis=1)
        z = mean + tf.exp(log_variance / 2) * tf.random.normal(tf.shape(mean))
        rebuilt = tf.reduce_mean(tf.reduce_sum((decoder(z) - x) ** 2, axis=1))
        spread = tf.reduce_sum(mean**2 + tf.exp(log_variance) - log_variance - 1, axis=1) / 2
        loss = rebuilt + 0.1 * tf.reduce_mean(spread)
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
    return loss


step = tf.function(train_step)
loss = tf.constant(0.0)
for _epoch in range(8):
    for batch in tf.data.Dataset.from_tensor_slices(rows).shuffle(2048, seed=6).batch(64):
        loss = step(batch)
print(f"negative ELBO {float(loss):.1f}")
