import tensorflow as tf

traces = []


@tf.function
def step(x, number):
    traces.append(number)
    return x * number


x = tf.ones([3])
for number in range(20):
    x = step(x, number)
assert len(traces) < 5, f"{len(traces)} traces of 20 calls"
