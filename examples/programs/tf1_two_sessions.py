"""Two TF1 models side by side, each with a graph and a session of its own."""

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
rng = np.random.default_rng(9)
features = rng.normal(0, 1, (2048, 256)).astype("float32")
targets = {
    "sum": features.sum(axis=1, keepdims=True) / 16,
    "max": features.max(axis=1, keepdims=True) - 2.8,
}


def train(name: str, target: np.ndarray) -> float:
    """Train one model in a graph of its own; the other's variables are out of reach."""
    graph = tf.Graph()
    with graph.as_default():
        tf.set_random_seed(9)
        x = tf.placeholder(tf.float32, (None, 256))
        y = tf.placeholder(tf.float32, (None, 1))
        hidden = x
        for layer in range(3):
            weights = tf.get_variable(f"{name}_{layer}", (256, 256))
            hidden = tf.nn.relu(tf.matmul(hidden, weights))
        predicted = tf.matmul(hidden, tf.get_variable(f"{name}_out", (256, 1)))
        loss = tf.reduce_mean(tf.square(predicted - y))
        step = tf.train.AdamOptimizer(0.001).minimize(loss)
        start = tf.global_variables_initializer()
    with tf.Session(graph=graph) as session:
        session.run(start)
        for _ in range(40):
            session.run(step, {x: features, y: target})
        return float(session.run(loss, {x: features, y: target}))


print("loss " + ", ".join(f"{name} {train(name, target):.2f}" for name, target in targets.items()))
