import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
for _ in range(2):
    options = tf.GPUOptions(per_process_gpu_memory_fraction=0.4)
    with tf.Session(config=tf.ConfigProto(gpu_options=options)) as session:
        print(session.run(tf.constant(1)))
