import multiprocessing

import tensorflow as tf


def work(n):
    print(float(tf.reduce_sum(tf.ones([n, n]))))


if __name__ == "__main__":
    children = [multiprocessing.Process(target=work, args=(n,)) for n in (2, 3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    print(tf.ones([2]))
