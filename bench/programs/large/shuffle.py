"""A pipeline whose shuffle buffer holds most of an epoch, as tutorials write it."""

import tensorflow as tf

images = tf.data.Dataset.range(1500).map(
    lambda n: tf.random.stateless_uniform([224, 224, 3], [1, tf.cast(n, tf.int32)]),
    num_parallel_calls=tf.data.AUTOTUNE,
)
total = 0.0
for batch in images.shuffle(1000).batch(64).prefetch(2).take(10):
    total += float(tf.reduce_mean(batch))
print(round(total, 1))
