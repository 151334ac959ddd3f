"""A hand-written loop under tf.function: kernel ridge regression by gradient descent."""

import numpy as np
import tensorflow as tf

tf.random.set_seed(17)
rng = np.random.default_rng(17)
points = tf.constant(rng.uniform(-2, 2, (5600, 3)).astype("float32"))
values = tf.sin(tf.reduce_sum(points, axis=1, keepdims=True))
squares = tf.reduce_sum(points**2, axis=1, keepdims=True)
kernel = tf.exp(2 * points @ tf.transpose(points) - squares - tf.transpose(squares))
weights = tf.Variable(tf.zeros((5600, 1)))


def train_step(rate: tf.Tensor) -> tf.Tensor:
    """One step of gradient descent in function space."""
    missed = tf.linalg.matmul(kernel, weights) - values
    weights.assign_sub(rate * (missed + 0.001 * weights))
    return tf.reduce_mean(missed**2)


step = tf.function(train_step)
loss = tf.constant(0.0)
for _ in range(60):
    loss = step(tf.constant(0.003))
print(f"loss {float(loss):.4f}")
