import tensorflow as tf

if tf.__version__.startswith("1."):
    Session = tf.Session
else:
    tf.compat.v1.disable_eager_execution()
    Session = tf.compat.v1.Session
with Session() as session:
    print(session.run(tf.constant(2) * 3))
