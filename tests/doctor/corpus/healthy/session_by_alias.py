import tensorflow

tf = tensorflow.compat.v1
tf.disable_eager_execution()
value = tf.get_variable("value", initializer=2.0)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    print(session.run(value))
