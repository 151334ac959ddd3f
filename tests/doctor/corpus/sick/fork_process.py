import multiprocessing

import tensorflow as tf

weights = tf.random.normal([256, 256])


def work(seed):
    print(float(tf.reduce_sum(tf.random.stateless_normal([256, 256], seed=[seed, 1]) @ weights)))


if __name__ == "__main__":
    print(float(tf.reduce_sum(weights @ weights)))
    child = multiprocessing.Process(target=work, args=(1,))
    child.start()
    child.join(20)
    alive = child.is_alive()
    child.kill()
    assert not alive, "the child hangs"
