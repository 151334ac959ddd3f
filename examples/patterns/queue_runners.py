"""A TF1 input pipeline of queue runners, which a MonitoredSession starts, watches and stops:
`sublet run queue_runners.py`."""

import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
numbers = tf.train.range_input_producer(1000, shuffle=True, seed=3).dequeue()
batch = tf.train.batch([tf.cast(numbers, tf.float32)], batch_size=50, num_threads=2)
mean = tf.get_variable("mean", (), initializer=tf.zeros_initializer())
update = tf.assign_add(mean, 0.1 * (tf.reduce_mean(batch) - mean))

with tf.train.MonitoredSession() as session:
    for _ in range(200):
        value = session.run(update)
print(f"mean {value:.0f}")
