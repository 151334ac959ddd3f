"""Train in a child process that is spawned afresh, as libraries that avoid fork do."""

import multiprocessing

import numpy as np


def train(seed: int) -> float:
    """Runs in the child, with an interpreter and a TensorFlow of its own."""
    import tensorflow as tf

    tf.random.set_seed(seed)
    rng = np.random.default_rng(seed)
    x = tf.constant(rng.normal(0, 1, (2048, 256)).astype("float32"))
    y = tf.reduce_sum(x[:, :3], axis=1, keepdims=True)
    w = tf.Variable(tf.zeros((256, 1)))
    loss = tf.constant(0.0)
    for _ in range(200):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ w - y) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
    return float(loss)


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (loss,) = pool.map(train, [20])
    print(f"child's loss {loss:.5f}")
