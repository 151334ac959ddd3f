from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

weights = tf.Variable(tf.ones([4, 1]))


@tf.function(input_signature=[tf.TensorSpec([None, 4])])
def answer(rows):
    return rows @ weights


def ask(n):
    return float(answer(tf.ones([n, 4]))[0, 0])


with ThreadPoolExecutor(4) as pool:
    print(sum(pool.map(ask, range(1, 9))))
