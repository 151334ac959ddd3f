import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
devices = tf.GPUOptions.Experimental.VirtualDevices(memory_limit_mb=[128])
options = tf.GPUOptions(
    per_process_gpu_memory_fraction=0.3,
    experimental=tf.GPUOptions.Experimental(virtual_devices=[devices]),
)
with tf.Session(config=tf.ConfigProto(gpu_options=options)) as session:
    print(session.run(tf.constant(1.0)))
