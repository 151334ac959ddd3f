import tensorflow as tf


def model_fn(features, labels, mode):
    loss = tf.reduce_mean(features["x"])
    return tf.estimator.EstimatorSpec(mode, loss=loss)


print(tf.estimator.Estimator(model_fn))
