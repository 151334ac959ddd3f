from concurrent.futures import ProcessPoolExecutor

import tensorflow as tf


@tf.function
def double(x):
    return 2.0 * x


def work(n):
    return float(tf.reduce_sum(double(tf.ones([n, n]) @ tf.ones([n, n]))))


if __name__ == "__main__":
    print(work(512))
    pool = ProcessPoolExecutor(2)
    try:
        print(pool.submit(work, 513).result(timeout=25))
    finally:
        for child in list(pool._processes.values()):
            child.kill()
