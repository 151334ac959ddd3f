import numpy as np
import tensorflow as tf

data = tf.data.Dataset.from_tensor_slices(np.zeros([8, 2], "float32")).batch(2)
for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)
print(sum(1 for _ in data))
