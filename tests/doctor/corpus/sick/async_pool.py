import os

os.environ["TF_GPU_ALLOCATOR"] = "cuda_malloc_async"
import tensorflow as tf

gpu = tf.config.list_physical_devices("GPU")[0]
tf.config.set_logical_device_configuration(
    gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=64)]
)
held = [tf.zeros([8 << 20]) for _ in range(8)]
raise SystemExit(f"{len(held)} tensors of 32 MiB in a limit of 64 MiB")
