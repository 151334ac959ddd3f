import tensorflow as tf


def scale(x):
    return tf.cast(x, tf.float32) / 255.0


data = tf.data.Dataset.range(100).map(scale, num_parallel_calls=tf.data.AUTOTUNE).batch(10)
print(sum(float(tf.reduce_sum(batch)) for batch in data.prefetch(2)))
