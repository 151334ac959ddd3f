import tensorflow as tf

total = tf.reduce_sum(tf.ones([4, 4]))
tf.config.threading.set_intra_op_parallelism_threads(2)
print(total)
