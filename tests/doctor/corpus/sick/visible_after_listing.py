import os

import tensorflow as tf

before = tf.config.list_physical_devices("GPU")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
with tf.device("CPU"):
    tf.ones([2])
after = tf.config.list_logical_devices("GPU")
assert not after, f"hidden, and still there: {after}; before: {before}"
