import tensorflow as tf


@tf.function
def step(x, number):
    return x * number


x = tf.ones([3])
for number in tf.range(20):
    x = step(x, tf.cast(number, tf.float32))
for number in range(20):
    x = step(x, tf.constant(float(number)))
print(x)
