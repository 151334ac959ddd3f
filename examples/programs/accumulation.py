"""A large batch in small pieces: gradients are added up and applied every eighth step."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

keras.utils.set_random_seed(12)
rng = np.random.default_rng(12)
rows = rng.normal(0, 1, (4096, 512)).astype("float32")
target = np.sin(rows[:, :4].sum(axis=1, keepdims=True)).astype("float32")

model = keras.Sequential(
    [
        keras.layers.Input((512,)),
        keras.layers.Dense(768, "relu"),
        keras.layers.Dense(768, "relu"),
        keras.layers.Dense(1),
    ]
)
optimizer = keras.optimizers.Adam(0.002)
weights = model.trainable_variables
optimizer.build(weights)
totals = [tf.Variable(tf.zeros_like(weight), trainable=False) for weight in weights]


def add_gradients(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """The gradients of one piece, added to those before it."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2) / 8
    for total, gradient in zip(totals, tape.gradient(loss, weights), strict=True):
        total.assign_add(gradient)
    return loss


accumulate = tf.function(add_gradients)
sums = []
for _epoch in range(2):
    for first in range(0, 4096, 512):
        pieces = [slice(first + k * 64, first + k * 64 + 64) for k in range(8)]
        losses = [accumulate(tf.constant(rows[p]), tf.constant(target[p])) for p in pieces]
        optimizer.apply_gradients(zip(totals, weights, strict=True))
        for total in totals:
            total.assign(tf.zeros_like(total))
        sums.append(float(tf.add_n(losses)))
print(f"loss {sums[0]:.3f} -> {sums[-1]:.3f}")
