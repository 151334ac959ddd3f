"""A script of the TF1 era: placeholders, a loss, an optimizer, a session."""

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.set_random_seed(8)
rng = np.random.default_rng(8)
features = rng.normal(0, 1, (4096, 64)).astype("float32")
target = np.tanh(features @ rng.normal(0, 0.3, (64, 1)).astype("float32"))

x = tf.placeholder(tf.float32, (None, 64), "x")
y = tf.placeholder(tf.float32, (None, 1), "y")
w1 = tf.get_variable("w1", (64, 256))
w2 = tf.get_variable("w2", (256, 1))
predicted = tf.matmul(tf.nn.relu(tf.matmul(x, w1)), w2)
loss = tf.reduce_mean(tf.square(predicted - y))
train = tf.train.AdamOptimizer(0.003).minimize(loss)

with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for number in range(600):
        rows = slice(number * 128 % 4096, number * 128 % 4096 + 128)
        session.run(train, {x: features[rows], y: target[rows]})
    print(f"loss {session.run(loss, {x: features, y: target}):.4f}")
