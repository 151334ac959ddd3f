import tensorflow as tf
import os

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras

print(keras.ops.ones([2]) + tf.ones([2]))
