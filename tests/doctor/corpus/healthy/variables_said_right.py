import os

os.environ.update(TF_FORCE_GPU_ALLOW_GROWTH="true", XLA_FLAGS="--xla_force_host_platform_device_count=2")
os.environ.setdefault("TF_GPU_ALLOCATOR", "cuda_malloc")

import tensorflow as tf

print(tf.ones([2]))
