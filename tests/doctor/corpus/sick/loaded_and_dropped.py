import tempfile

import tensorflow as tf


class Doubler(tf.Module):
    def __init__(self):
        self.weight = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([])])
    def double(self, x):
        return x * self.weight


folder = tempfile.mkdtemp()
tf.saved_model.save(Doubler(), folder)
double = tf.saved_model.load(folder).double
print(double(tf.constant(2.0)))
