import os

import tensorflow as tf

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
print(tf.config.list_physical_devices("GPU"))
