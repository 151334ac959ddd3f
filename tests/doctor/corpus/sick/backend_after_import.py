import keras
import os

os.environ["KERAS_BACKEND"] = "numpy"
assert keras.backend.backend() == "numpy", keras.backend.backend()
