import threading

import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
x = tf.placeholder(tf.float32, [])
y = tf.square(x)
session = tf.Session()


def ask(value):
    print(session.run(y, {x: value}))


threads = [threading.Thread(target=ask, args=(float(n),)) for n in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
