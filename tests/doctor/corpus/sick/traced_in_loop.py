import tensorflow as tf

traces = []


def square(x):
    traces.append(1)
    return x * x


for _ in range(12):
    compiled = tf.function(square)
    compiled(tf.ones([3]))
assert len(traces) < 5, f"{len(traces)} traces of 12 calls"
