"""A TF1 script that takes its share of the card by per_process_gpu_memory_fraction."""

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.set_random_seed(10)
rng = np.random.default_rng(10)
ratings = rng.normal(0, 1, (1500, 20)) @ rng.normal(0, 1, (20, 1200))

users = tf.get_variable("users", (1500, 20))
items = tf.get_variable("items", (20, 1200))
known = tf.constant(ratings.astype("float32"))
loss = tf.reduce_mean(tf.square(tf.matmul(users, items) - known))
step = tf.train.AdamOptimizer(0.1).minimize(loss)

config = tf.ConfigProto()
config.gpu_options.per_process_gpu_memory_fraction = 0.4
config.gpu_options.allow_growth = True
with tf.Session(config=config) as session:
    session.run(tf.global_variables_initializer())
    for _ in range(60):
        session.run(step)
    print(f"loss {session.run(loss):.3f}")
