import tensorflow as tf


def build():
    return tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(2)])


def configure():
    cpu = tf.config.list_physical_devices("CPU")[0]
    halves = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, halves)


if __name__ == "__main__":
    model = build()
    configure()
    print(model.count_params(), tf.config.list_logical_devices())
