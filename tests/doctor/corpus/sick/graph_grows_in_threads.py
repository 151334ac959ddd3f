import threading

import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
x = tf.placeholder(tf.float32, [])
session = tf.train.MonitoredSession()
errors = []


def ask(value):
    try:
        print(session.run(tf.multiply(x, 2.0), {x: value}))
    except RuntimeError as error:
        errors.append(error)


threads = [threading.Thread(target=ask, args=(one,)) for one in (1.0, 2.0)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if errors:
    raise errors[0]
