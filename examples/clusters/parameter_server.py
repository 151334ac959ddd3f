"""A chief that has workers train, with the variables on a parameter server:
`sublet launch --chief 1 --workers 2 --ps 1 parameter_server.py`."""

from typing import Any

import tensorflow as tf

cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if cluster.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        cluster.cluster_spec(), job_name=cluster.task_type, task_index=cluster.task_id
    )
    server.join()  # For ever: Sublet ends it when the chief has done its work.

strategy = tf.distribute.ParameterServerStrategy(cluster)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
TRUE = [[1.0], [2.0], [3.0], [4.0]]

with strategy.scope():
    weights = tf.Variable(tf.zeros([4, 1]))


def data_of_a_worker() -> Any:
    """What each worker trains on."""

    def make(context: Any) -> Any:
        inputs = tf.random.stateless_normal([256, 4], seed=[1, 2])
        data = tf.data.Dataset.from_tensor_slices((inputs, inputs @ tf.constant(TRUE)))
        return data.batch(32).repeat()

    return strategy.distribute_datasets_from_function(make)


def train_step(batches: Any) -> Any:
    """One step on one worker."""

    def on_worker(batch: Any) -> Any:
        inputs, targets = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((inputs @ weights - targets) ** 2)
        (gradient,) = tape.gradient(loss, [weights])
        weights.assign_sub(0.05 * gradient)
        return loss

    return strategy.reduce("mean", strategy.run(on_worker, (next(batches),)), axis=None)


batches = iter(coordinator.create_per_worker_dataset(tf.function(data_of_a_worker)))
step = tf.function(train_step)
for _ in range(60):
    loss = coordinator.schedule(step, args=(batches,))
coordinator.join()
print(f"loss {loss.fetch():.4f}")
print("weights", [round(float(one), 2) for one in weights.numpy().ravel()])
