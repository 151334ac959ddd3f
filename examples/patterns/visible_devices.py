"""A program that takes the devices it is given: `sublet run visible_devices.py` for any,
`sublet run --gpu 1` or `CUDA_VISIBLE_DEVICES=1 sublet run` for one, `--gpus 2` for two."""

import tensorflow as tf

devices = [device.name for device in tf.config.list_logical_devices("GPU")] or ["/device:CPU:0"]
for device in devices:
    with tf.device(device):
        total = tf.reduce_sum(tf.ones([100]))
    print(f"{device}: {float(total):.0f}")
