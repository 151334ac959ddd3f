import json
import os

os.environ["TF_CONFIG"] = json.dumps(
    {
        "cluster": {"chief": ["localhost:1"], "worker": ["localhost:2"], "ps": ["localhost:3"]},
        "task": {"type": "evaluator", "index": 0},
    }
)
import tensorflow as tf

print(tf.distribute.cluster_resolver.TFConfigClusterResolver().task_type)
