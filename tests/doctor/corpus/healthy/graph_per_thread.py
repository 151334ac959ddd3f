import threading

import tensorflow.compat.v1 as tf

tf.disable_eager_execution()


def work(value):
    with tf.Graph().as_default(), tf.Session() as session:
        print(session.run(tf.multiply(tf.constant(value), 2.0)))


threads = [threading.Thread(target=work, args=(float(n),)) for n in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
