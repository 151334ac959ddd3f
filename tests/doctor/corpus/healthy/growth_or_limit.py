import argparse

import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--limit", type=int)
limit = parser.parse_args().limit
for gpu in tf.config.list_physical_devices("GPU"):
    if limit:
        tf.config.set_logical_device_configuration(
            gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=limit)]
        )
    else:
        tf.config.experimental.set_memory_growth(gpu, True)
print(tf.ones([2]))
