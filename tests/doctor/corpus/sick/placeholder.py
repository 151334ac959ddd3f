import tensorflow as tf

x = tf.placeholder(tf.float32, [None, 3])
y = tf.reduce_sum(x)
with tf.compat.v1.Session() as session:
    print(session.run(y, {x: [[1.0, 2.0, 3.0]]}))
