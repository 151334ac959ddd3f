import tensorflow as tf

first, *others = tf.config.list_physical_devices("GPU")
tf.config.experimental.set_memory_growth(first, True)
for other in others:
    tf.config.experimental.set_memory_growth(other, False)
print(tf.reduce_sum(tf.ones([4])))
