"""Export a model, load it back from disk, and answer requests with the copy."""

import tempfile

import numpy as np
import tensorflow as tf
from tensorflow import keras

keras.utils.set_random_seed(18)
rng = np.random.default_rng(18)
model = keras.Sequential(
    [keras.layers.Input((128,)), keras.layers.Dense(512, "relu"), keras.layers.Dense(10)]
)

with tempfile.TemporaryDirectory() as folder:
    model.export(folder, verbose=False)
    serve = tf.saved_model.load(folder).signatures["serving_default"]
    rows = rng.normal(0, 1, (256, 128)).astype("float32")
    (name,) = serve.structured_input_signature[1]
    answers = [
        next(iter(serve(**{name: tf.constant(rows + k)}).values())).numpy() for k in range(100)
    ]

direct = model(rows).numpy()
same = np.allclose(answers[0], direct, atol=1e-5)
print(f"{len(answers)} answers, same: {same}")
