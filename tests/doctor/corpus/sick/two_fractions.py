import tensorflow as tf

tf1 = tf.compat.v1
tf1.disable_eager_execution()


def session(fraction):
    config = tf1.ConfigProto()
    config.gpu_options.per_process_gpu_memory_fraction = fraction
    return tf1.Session(config=config)


small = tf1.ConfigProto()
small.gpu_options.per_process_gpu_memory_fraction = 0.1
large = tf1.ConfigProto()
large.gpu_options.per_process_gpu_memory_fraction = 0.6
limits = [
    [one.memory_limit_bytes for one in tf1.Session(config=config).list_devices() if "GPU:0" in one.name]
    for config in (small, large)
]
assert limits[0] != limits[1], f"both sessions have {limits[0]}"
