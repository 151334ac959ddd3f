import json
import os

import tensorflow as tf

os.environ["TF_CONFIG"] = json.dumps(
    {"cluster": {"worker": ["localhost:23457"]}, "task": {"type": "worker", "index": 0}}
)
scale = tf.constant(3.0)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
print(strategy.num_replicas_in_sync, scale)
