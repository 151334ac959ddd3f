"""Two halves of a model on two devices: `sublet run --gpus 2 model_parallel.py`, or, to rehearse it
on one, `sublet launch --logical 2 model_parallel.py`."""

import tensorflow as tf

kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
first, second = [device.name for device in tf.config.list_logical_devices(kind)][:2]

rows = tf.random.stateless_normal([256, 64], seed=[5, 6])
with tf.device(first):
    lower = tf.Variable(tf.random.stateless_normal([64, 128], seed=[1, 1]) * 0.1)
with tf.device(second):
    upper = tf.Variable(tf.random.stateless_normal([128, 1], seed=[2, 2]) * 0.1)


def train_step() -> tf.Tensor:
    """Forward through both halves, and back; what passes between them is copied by TensorFlow."""
    with tf.GradientTape() as tape:
        with tf.device(first):
            hidden = tf.nn.relu(rows @ lower)
        with tf.device(second):
            loss = tf.reduce_mean((hidden @ upper - rows[:, :1]) ** 2)
    for weights, gradient in zip((lower, upper), tape.gradient(loss, (lower, upper)), strict=True):
        weights.assign_sub(0.02 * gradient)
    return loss


step = tf.function(train_step)
losses = [float(step()) for _ in range(40)]
print(f"on {first} and {second}: loss {losses[0]:.2f}, then {losses[-1]:.2f}")
