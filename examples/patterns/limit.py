"""A program that says what it needed of its limit: `sublet run --memory 256MiB limit.py`."""

import tensorflow as tf

rows = tf.random.stateless_normal([2048, 512], seed=[1, 2])
weights = tf.Variable(tf.zeros([512, 512]))


def descend() -> None:
    """One step towards weights that reproduce the rows."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((rows @ weights - rows) ** 2)
    weights.assign_sub(100.0 * tape.gradient(loss, weights))


step = tf.function(descend)
for _ in range(20):
    step()
device = "GPU:0" if tf.config.list_physical_devices("GPU") else "CPU:0"
peak = tf.config.experimental.get_memory_info(device)["peak"]
print(f"peak {peak / 2**20:.0f} MiB on {device}")
