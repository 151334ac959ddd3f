"""A training in the queue that is preempted and killed, and ends as if nothing had happened."""

from support.queue import ended, said, submit
from support.sandbox import Sandbox

TRAIN = """
import os
import signal
import sys
import keras
import numpy as np
from keras import layers
import sublet

keras.utils.set_random_seed(1)
hidden = [layers.Dense(8), layers.Dropout(0.5)]
model = keras.Sequential([layers.Input((8,)), *hidden, layers.Dense(1)])
model.compile("adam", "mse")
x = np.random.default_rng(0).normal(size=(64, 8)).astype("f")


def end(step, logs):
    for name, number in (("preempted", signal.SIGTERM), ("killed", signal.SIGKILL)):
        if sys.argv[1:] and step == 2 and not os.path.exists(name):
            open(name, "w").close()
            os.kill(os.getpid(), number)
            break


ends = keras.callbacks.LambdaCallback(on_train_batch_end=end)
history = sublet.fit(model, x, x[:, :1], batch_size=16, epochs=3, verbose=0, callbacks=[ends],
                     checkpoint="-".join(["run", *sys.argv[1:]]), checkpoint_every=1).history
print("ended with", [one.numpy().tobytes().hex() for one in model.weights], history)
"""


def test_a_preempted_and_killed_training_ends_like_one_that_was_not(sandbox: Sandbox) -> None:
    sandbox.write("learn.py", TRAIN)
    whole = submit(sandbox, "learn.py", memory="128MiB")
    parts = submit(sandbox, "--retries", "1", "learn.py", "again", memory="128MiB")
    assert [one["exit"] for one in ended(sandbox, whole, parts)] == [0, 0]
    assert said(sandbox, parts).splitlines()[-1] == said(sandbox, whole).splitlines()[-1]
    first = said(sandbox, parts, "--attempt", "1")
    assert "sublet: SIGTERM: the training is saved in " in first
    assert "going on from " in said(sandbox, parts, "--attempt", "2")
    assert "going on from " in said(sandbox, parts, "--attempt", "3")
