import sys

import tensorflow as tf

if "--compute" in sys.argv:
    print(tf.ones([2]))
else:
    tf.config.threading.set_inter_op_parallelism_threads(1)
    print(tf.zeros([2]))
