"""One model on several devices of one process: `sublet run --gpus 2 mirrored.py`, or, to rehearse
it on one device, `sublet launch --logical 2 mirrored.py`."""

import keras
import numpy as np
import tensorflow as tf

kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
devices = [device.name for device in tf.config.list_logical_devices(kind)]
strategy = tf.distribute.MirroredStrategy(devices)

rows = np.random.default_rng(4).normal(size=(512, 8)).astype("float32")
with strategy.scope():  # Model, optimizer and metrics: all that has variables.
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
history = model.fit(rows, rows.sum(axis=1), batch_size=64, epochs=3, verbose=0)
print(f"{strategy.num_replicas_in_sync} replicas, loss {history.history['loss'][-1]:.3f}")
