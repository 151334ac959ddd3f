import json
import multiprocessing
import os
import sys


def worker(index):
    os.environ["TF_CONFIG"] = json.dumps(
        {
            "cluster": {"worker": ["localhost:23461", "localhost:23462"]},
            "task": {"type": "worker", "index": index},
        }
    )
    import keras
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.ones([32, 4]), np.ones([32, 1]), batch_size=8, verbose=0)


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=worker, args=(index,)) for index in range(2)]
    for one in workers:
        one.start()
    for one in workers:
        one.join(60)
        one.kill()
    sys.exit(max(one.exitcode or 0 for one in workers) or any(one.exitcode for one in workers))
