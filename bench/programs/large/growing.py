"""Ever larger tensors, one at a time: what the last one freed is too small for the next."""

import tensorflow as tf

for size in range(100, 700, 75):
    total = tf.reduce_sum(tf.ones([size << 18]))
print(int(total) >> 18)
