"""A large table of embeddings, and an optimizer that keeps two more of its size."""

import tensorflow as tf

table = tf.Variable(tf.random.normal([1_000_000, 64]))
slots = [tf.Variable(tf.zeros_like(table)) for _ in range(2)]
for step in range(3):
    rows = tf.random.uniform([4096], 0, table.shape[0], tf.int32)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.gather(table, rows) ** 2)
    gradient = tf.convert_to_tensor(tape.gradient(loss, table))
    slots[0].assign(0.9 * slots[0] + 0.1 * gradient)
    slots[1].assign(0.99 * slots[1] + 0.01 * gradient**2)
    table.assign_sub(0.01 * slots[0] / (tf.sqrt(slots[1]) + 1e-7))
    print(step, float(loss))
