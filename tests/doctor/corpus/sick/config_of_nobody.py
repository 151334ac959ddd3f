import os

os.environ["TF_CONFIG"] = '{"cluster": {"worker": ["localhost:23481"]}, "task": {"type": "ps", "index": 0}}'
import tensorflow as tf

print(tf.distribute.MultiWorkerMirroredStrategy())
