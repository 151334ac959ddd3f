import json
import os

import tensorflow as tf

os.environ["TF_CONFIG"] = json.dumps(
    {"cluster": {"worker": ["localhost:23491"]}, "task": {"type": "worker", "index": 0}}
)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weight = tf.Variable(tf.ones([2]))
print(strategy.num_replicas_in_sync, weight)
