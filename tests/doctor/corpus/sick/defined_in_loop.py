import tensorflow as tf

weights = tf.Variable([1.0, 2.0])
traces = 0
for epoch in range(8):

    @tf.function
    def step():
        global traces
        traces += 1
        weights.assign_sub(0.1 * weights)

    step()
assert traces < 4, f"{traces} traces of 8 calls"
