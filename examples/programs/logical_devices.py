"""Two logical devices made from one, each computing half of a product."""

import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
names = [device.name for device in tf.config.list_logical_devices("CPU")]

tf.random.set_seed(11)
matrix = tf.random.normal((1024, 1024)) / 32
for _ in range(16):
    halves = []
    for name, rows in zip(names, tf.split(matrix, len(names)), strict=True):
        with tf.device(name):
            halves.append(tf.tanh(tf.matmul(rows, matrix)))
    matrix = tf.concat(halves, axis=0)
    matrix /= tf.norm(matrix, axis=1, keepdims=True)
print(f"on {len(names)}: mean {float(tf.reduce_mean(tf.abs(matrix))):.4f}")
