"""A pool of processes for a program in which TensorFlow runs already: `python processes.py`."""

import tensorflow as tf

import sublet.multiprocessing as mp


def train(rate: float) -> float:
    """Runs in a worker with a lease of its own, forked from a process without a runtime."""
    weight = tf.Variable(4.0)
    for _ in range(20):
        with tf.GradientTape() as tape:
            loss = weight**2
        weight.assign_sub(rate * tape.gradient(loss, weight))
    return float(loss)


if __name__ == "__main__":
    print(f"here: {float(tf.reduce_sum(tf.ones([8]))):.0f}")  # A forked child would hang now.
    with mp.Pool(2, memory="128MiB") as pool:
        losses = pool.map(train, [0.01, 0.1, 0.3])
    print("best rate", [0.01, 0.1, 0.3][losses.index(min(losses))])
