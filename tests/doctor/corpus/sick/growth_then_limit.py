import tensorflow as tf

gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_logical_device_configuration(
        gpus[0], [tf.config.LogicalDeviceConfiguration(memory_limit=256)]
    )
    tf.config.experimental.set_memory_growth(gpus[0], True)
print(tf.reduce_sum(tf.ones([4])))
