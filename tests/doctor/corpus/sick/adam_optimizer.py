import tensorflow as tf

weight = tf.Variable(3.0)
optimizer = tf.train.AdamOptimizer(0.1)
optimizer.minimize(lambda: weight * weight)
print(weight.numpy())
