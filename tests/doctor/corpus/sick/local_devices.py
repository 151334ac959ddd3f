from tensorflow.python.client import device_lib

cards = [one for one in device_lib.list_local_devices() if one.device_type == "GPU"]
taken = sum(one.memory_limit for one in cards)
assert not taken, f"{taken >> 20} MiB were taken to list {len(cards)} cards"
