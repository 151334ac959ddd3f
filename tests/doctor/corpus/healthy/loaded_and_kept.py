import tempfile

import tensorflow as tf


class Doubler(tf.Module):
    def __init__(self):
        self.weight = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([])])
    def double(self, x):
        return x * self.weight


module, folder = Doubler(), tempfile.mkdtemp()
tf.saved_model.save(module, folder, signatures=module.double)
loaded = tf.saved_model.load(folder)
print(loaded.double(tf.constant(2.0)))
serve = tf.saved_model.load(folder).signatures["serving_default"]
print(serve(tf.constant(3.0)))
