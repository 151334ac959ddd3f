import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
first = tf.Session(config=tf.ConfigProto(gpu_options=tf.GPUOptions(visible_device_list="0")))
second = tf.Session(config=tf.ConfigProto(gpu_options=tf.GPUOptions(visible_device_list="1")))
print(first.list_devices(), second.list_devices())
