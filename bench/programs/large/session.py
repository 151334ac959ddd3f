"""A TF1 graph with large variables and momentum, in a session."""

import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
x = tf.placeholder(tf.float32, [None, 8192])
weights = tf.get_variable("weights", [8192, 8192])
loss = tf.reduce_mean(tf.matmul(x, weights) ** 2)
train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    rows = [[1.0] * 8192] * 8
    for _ in range(3):
        print(session.run([loss, train], {x: rows})[0])
