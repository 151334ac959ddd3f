import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(2)
for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)
print(tf.reduce_sum(tf.ones([4, 4])))
