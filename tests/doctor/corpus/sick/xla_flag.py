import os

os.environ["XLA_FLAGS"] = "--tf_xla_auto_jit=2"
import tensorflow as tf


@tf.function(jit_compile=True)
def double(x):
    return 2 * x


print(double(tf.ones([2])))
