"""What TensorFlow computes on a stand-in card: as on the CPU, so that programs which decide by what
they compute run there as they would on a real card."""

import json
from collections.abc import Callable

from standin import Gpu, Machine
from support.sandbox import Sandbox

NewSandbox = Callable[..., Sandbox]
NewMachine = Callable[..., Machine]

OPERATIONS = """
import json
import numpy as np
import tensorflow as tf

a, b = np.random.default_rng(1).normal(size=(2, 5, 7)).astype("float32")
n = np.random.default_rng(2).integers(0, 5, 20)
operations = {
    "fill": lambda: tf.fill((3, 4), 2.5),
    "add": lambda: tf.constant(a) + b,
    "a row": lambda: tf.constant(a) * b[0],
    "a column": lambda: tf.constant(a) - b[:, :1],
    "cast": lambda: tf.cast(tf.constant(a) * 10, tf.int32),
    "half": lambda: tf.cast(tf.cast(tf.constant(a), tf.float16) * 2, tf.float32),
    "greater": lambda: tf.constant(a) > b,
    "remainder": lambda: tf.constant(n) % 3,
    "exp": lambda: tf.exp(tf.constant(a)),
    "tanh": lambda: tf.tanh(tf.constant(a)),
    "sum": lambda: tf.reduce_sum(tf.constant(np.tile(a, (50, 9)))),
    "sum of columns": lambda: tf.reduce_sum(tf.constant(a), 0),
    "largest of rows": lambda: tf.reduce_max(tf.constant(a), 1),
    "argmax": lambda: tf.argmax(tf.constant(a), 1),
    "where": lambda: tf.where(tf.constant(a) > 0),
    "choice": lambda: tf.where(tf.constant(a) > 0, a, b),
    "mask": lambda: tf.boolean_mask(tf.constant(a), tf.constant(a)[:, 0] > 0),
    "unique": lambda: tf.unique(tf.constant(n))[0],
    "sort": lambda: tf.sort(tf.constant(a)),
    "top": lambda: tf.math.top_k(tf.constant(a), 3)[0],
    "running sum": lambda: tf.cumsum(tf.constant(a)),
    "gather": lambda: tf.gather(tf.constant(a), n),
    "segments": lambda: tf.math.unsorted_segment_sum(tf.constant(np.ones((20, 3), "f")), n, 5),
    "transpose": lambda: tf.transpose(tf.constant(a)),
    "slice": lambda: tf.constant(a)[1:3, 2:5],
    "softmax": lambda: tf.nn.softmax(tf.constant(a)),
    "loss": lambda: tf.nn.sparse_softmax_cross_entropy_with_logits(n[:5], tf.constant(a)),
    "normal": lambda: tf.random.stateless_normal((6,), (1, 2)),
    "product": lambda: tf.matmul(tf.constant(a), tf.constant(b), transpose_b=True),
    "products": lambda: tf.einsum("bij,bkj->bik", np.stack([a, b]), tf.constant(np.stack([b, a]))),
}


def recurrent(kind, weights, inputs=np.stack([a, b])):
    # What such a layer gives, and its gradients.
    layer = kind(6, return_sequences=True, bias_initializer="random_normal")
    inputs = tf.constant(inputs)
    layer(inputs)
    layer.set_weights(weights or layer.get_weights())
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = layer(inputs)
        total = tf.reduce_sum(outputs * tf.range(6.0))
    wanted = [inputs, *(weight.value for weight in layer.trainable_weights)]
    flat = [tf.reshape(one, [-1]) for one in (outputs, *tape.gradient(total, wanted))]
    return tf.concat(flat, 0), layer.get_weights()


def twice(kind):
    weights = []

    def once():
        found, weights[:] = recurrent(kind, weights)
        return found

    return once


operations["LSTM"] = twice(tf.keras.layers.LSTM)
operations["GRU"] = twice(tf.keras.layers.GRU)
wrong = {}
for name, operation in operations.items():
    with tf.device("GPU:0"):
        on_card = operation()
    with tf.device("CPU:0"):
        wanted = operation().numpy()
    assert on_card.device.endswith("GPU:0"), name
    found = on_card.numpy()
    if found.shape != wanted.shape or not np.allclose(found, wanted, rtol=1e-3, atol=1e-4):
        wrong[name] = [str(found), str(wanted)]
print(json.dumps([len(operations), wrong]))
"""

TRAINING = """
import json
import numpy as np
import tensorflow as tf

layers = tf.keras.layers
x = np.random.default_rng(1).normal(size=(256, 8)).astype("float32")
found = []
for compiled in (False, True):
    tf.keras.utils.set_random_seed(1)
    hidden = [layers.Dense(16, activation="relu"), layers.Dropout(0.1)]
    model = tf.keras.Sequential([layers.Input((8,)), *hidden, layers.Dense(3)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    adam = tf.keras.optimizers.Adam(0.02)
    model.compile(adam, loss, metrics=["accuracy"], jit_compile=compiled)
    history = model.fit(x, x[:, :3].argmax(1), batch_size=64, epochs=4, verbose=0).history
    assert model.variables[0].value.device.endswith("GPU:0")
    found.append([history["loss"], history["accuracy"]])
print(json.dumps(found))
"""


def test_operations_on_a_card_give_what_they_give_on_the_cpu(
    new_machine: NewMachine, new_sandbox: NewSandbox
) -> None:
    """Those that decide about shapes and control flow, and those of a training."""
    machine = new_machine(Gpu())
    sandbox = new_sandbox(**machine.environ)
    sandbox.write("operations.py", OPERATIONS)
    done = sandbox.python("operations.py")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [32, {}]
    assert machine.log("cannot compute|gave up") == []


def test_a_keras_training_converges_on_a_card_under_a_lease(
    new_machine: NewMachine, new_sandbox: NewSandbox
) -> None:
    """With XLA and without."""
    machine = new_machine(Gpu(compute=(7, 5)))
    sandbox = new_sandbox(**machine.environ)
    sandbox.write("training.py", TRAINING)
    done = sandbox.sublet("run", "--memory", "1GiB", "training.py", check=True)
    for loss, accuracy in json.loads(done.stdout):
        assert loss[-1] < 0.7 * loss[0]
        assert accuracy[-1] > 0.7
    assert machine.refusals() == []
    assert machine.log("cannot compute|gave up") == []
