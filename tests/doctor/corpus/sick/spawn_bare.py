import multiprocessing as mp

import tensorflow as tf


def work(n):
    print(tf.ones([n]))


context = mp.get_context("spawn")
child = context.Process(target=work, args=(3,))
child.start()
child.join()
assert child.exitcode == 0, child.exitcode
