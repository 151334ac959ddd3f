import multiprocessing

import tensorflow as tf


def work(n):
    print(float(tf.reduce_sum(tf.ones([n, n]))))


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    print(tf.ones([2]))
    child = multiprocessing.Process(target=work, args=(4,))
    child.start()
    child.join()
    assert child.exitcode == 0
