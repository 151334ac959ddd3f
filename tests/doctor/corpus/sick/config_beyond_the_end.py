import json
import os

import tensorflow as tf

os.environ["TF_CONFIG"] = json.dumps(
    {
        "cluster": {"worker": ["localhost:23471", "localhost:23472"]},
        "task": {"type": "worker", "index": 2},
    }
)
print(tf.distribute.MultiWorkerMirroredStrategy())
