"""Allocates piece after piece, more than its lease has, and prints how long each piece took."""

import sys
import time

import tensorflow as tf

count, mib = int(sys.argv[1]), int(sys.argv[2])
tf.zeros([1])
kept = []
for _ in range(count):
    began = time.perf_counter()
    # Untouched: what takes time is to get the memory, not to fill it.
    kept.append(tf.raw_ops.Empty(shape=[mib << 18], dtype=tf.float32, init=False))
    print(time.perf_counter() - began, flush=True)
    time.sleep(0.4)
