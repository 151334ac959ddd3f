import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
x = tf.placeholder(tf.float32, [None])
with tf.Session() as session:
    print(session.run(tf.reduce_sum(x), {x: [1.0, 2.0]}))
