"""Workers that train one model together: `sublet launch --workers 2 mirrored_workers.py`.

A loop of its own, because `fit` of Keras 3 does not work with MultiWorkerMirroredStrategy.
"""

import argparse
from typing import Any

import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
steps = parser.parse_args().steps

# Reads TF_CONFIG and starts a server: before any operation runs.
strategy = tf.distribute.MultiWorkerMirroredStrategy()

TRUE = tf.constant([[1.0], [2.0], [3.0], [4.0]])
INPUTS = tf.random.stateless_normal([256, 4], seed=[1, 2])

with strategy.scope():
    weights = tf.Variable(tf.zeros([4, 1]))


def shard(context: Any) -> Any:
    """The part of the data that this worker trains on."""
    data = tf.data.Dataset.from_tensor_slices((INPUTS, INPUTS @ TRUE)).batch(32)
    return data.shard(context.num_input_pipelines, context.input_pipeline_id).repeat()


def train_step(batches: Any) -> Any:
    """One step on all workers; the loss over all of them."""

    def on_worker(batch: Any) -> Any:
        inputs, targets = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((inputs @ weights - targets) ** 2)
            loss /= strategy.num_replicas_in_sync
        (gradient,) = tape.gradient(loss, [weights])
        gradient = tf.distribute.get_replica_context().all_reduce("sum", gradient)
        weights.assign_sub(0.1 * gradient)
        return loss

    return strategy.reduce("sum", strategy.run(on_worker, (next(batches),)), axis=None)


step_together = tf.function(train_step)
batches = iter(strategy.distribute_datasets_from_function(shard))
for step in range(steps):
    loss = step_together(batches)
    if step % 10 == 0:
        print(f"step {step}: loss {float(loss):.4f}")
print("weights", [round(float(one), 2) for one in weights.numpy().ravel()])
