"""Attention over a long sequence: matrices of 256 MiB, forwards and backwards."""

import tensorflow as tf

q, k, v = (tf.Variable(tf.random.normal([4, 4096, 16])) for _ in range(3))
for _ in range(2):
    with tf.GradientTape() as tape:
        weights = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / 4.0)
        loss = tf.reduce_mean(tf.matmul(weights, v) ** 2)
    tape.gradient(loss, [q, k, v])
print(loss.shape)
