import copy
import json
import os

config = {"cluster": {"worker": ["localhost:1", "localhost:2"]}, "task": {"type": "worker", "index": 5}}
mine = copy.deepcopy(config)
mine["task"]["index"] = 1
os.environ["TF_CONFIG"] = json.dumps(mine)
print(os.environ["TF_CONFIG"])
