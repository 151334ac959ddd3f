"""Trainings of whole models and of the same in parts, on two logical CPUs: `trainings.py` prints
how far they differ, and what it is told about models that cannot be split, as JSON.

A process of its own, because logical devices are made before TensorFlow starts.
"""

import contextlib
import io
import json
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import sublet

ROWS = 19
"""Batches of 8: the last one has 3, fewer than micro-batches."""
Case = tuple[Any, dict[str, Any], dict[str, Any]]
"""A model, what `fit` takes, and what `split` takes."""


def numbers(*shape: int) -> Any:
    return np.random.default_rng(len(shape) + shape[-1]).normal(size=shape).astype("float32")


def skips() -> Case:
    """Several inputs and outputs, skip connections, losses of weights and of what layers compute,
    weights of rows."""
    first, second = layers.Input((8,), name="first"), layers.Input((4,), name="second")
    hidden = layers.Dense(16, "relu", kernel_regularizer="l2")(first)
    kept = hidden
    block = layers.Dense(16, "relu", activity_regularizer="l2")(hidden)
    hidden = layers.LayerNormalization()(hidden + layers.Dense(16)(block))
    early = layers.Dense(1, name="early")(kept)
    joined = layers.Concatenate()([hidden, second, kept])
    late = layers.Dense(3, "softmax", name="late", kernel_regularizer="l1")(joined)
    model = keras.Model({"first": first, "second": second}, {"early": early, "late": late})
    model.compile(
        keras.optimizers.AdamW(0.01, global_clipnorm=0.5, use_ema=True),
        {"early": "mse", "late": "sparse_categorical_crossentropy"},
        loss_weights={"early": 0.3, "late": 2.0},
        metrics={"early": ["mae"], "late": ["accuracy"]},
    )
    weights = np.linspace(0, 2, ROWS, dtype="float32")
    return (
        model,
        {
            "x": {"first": numbers(ROWS, 8), "second": numbers(ROWS, 4)},
            "y": {"early": numbers(ROWS, 1), "late": np.arange(ROWS) % 3},
            "sample_weight": {"early": weights, "late": weights},
        },
        {"parts": 2, "micro_batches": 2},
    )


def masked() -> Case:
    """Masks that go from one part to the other, and gradients of the rows of an embedding."""
    embedded = layers.Embedding(20, 8, mask_zero=True)
    inner = [layers.Dense(8), layers.LSTM(4, return_sequences=True)]
    last = layers.Dense(5, "softmax")
    model = keras.Sequential([layers.Input((6,), dtype="int32"), embedded, *inner, last])
    model.compile("adam", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    x = np.random.default_rng(0).integers(1, 20, (ROWS, 6))
    for row in range(ROWS):
        x[row, 1 + row % 5 :] = 0
    return model, {"x": x, "y": x % 5}, {"devices": ["/CPU:1", "cpu:0"], "micro_batches": 2}


def nested() -> Case:
    """A model within a model, a layer that is called twice, activations that are computed again,
    and an optimizer that has learned something already."""
    inputs = layers.Input((8,))
    twice = layers.Dense(8, "tanh")
    base = keras.Model(inputs, layers.Dense(16)(twice(twice(inputs))), name="base")
    model = keras.Sequential([layers.Input((8,)), base, layers.ReLU(), layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    given = {"x": numbers(ROWS, 8), "y": numbers(ROWS, 1)}
    model.train_on_batch(**given)
    return model, given, {"parts": 2, "recompute": True}


def compares_rows() -> Case:
    """A loss of the program's own, which compares rows; no graph for the step."""

    def spread(true: Any, found: Any) -> Any:
        return tf.reduce_mean(tf.square(found - tf.transpose(found) - true))

    model = keras.Sequential([layers.Input((8,)), layers.Dense(8, "relu"), layers.Dense(1)])
    model.compile("sgd", spread, run_eagerly=True)
    return model, {"x": numbers(ROWS, 8), "y": numbers(ROWS, 1)}, {"parts": 2}


def added_sums() -> Case:
    """A layer that adds a sum over rows to the loss; several steps in one execution."""

    class Adds(layers.Layer):  # type: ignore[misc]  # Keras has no types.
        def call(self, x: Any) -> Any:
            self.add_loss(1e-3 * tf.reduce_sum(tf.square(x)))
            return x

    model = keras.Sequential([layers.Input((8,)), layers.Dense(8), Adds(), layers.Dense(1)])
    model.compile("adam", "mse", steps_per_execution=2)
    return model, {"x": numbers(ROWS, 8), "y": numbers(ROWS, 1)}, {"parts": 2}


def half_precision() -> Case:
    """The loss is scaled, and so are gradients."""
    hidden = [layers.Dense(16, "relu", dtype="mixed_float16") for _ in range(2)]
    with_policy = keras.Sequential([layers.Input((8,)), *hidden, layers.Dense(1)])
    adam = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=64.0)
    with_policy.compile(adam, "mse")
    return (
        with_policy,
        {"x": numbers(ROWS, 8), "y": numbers(ROWS, 1)},
        {"parts": 3, "micro_batches": 2},
    )


def sure() -> Case:
    """Probabilities of 0 and 1, of which Keras' losses take the logits: by its note, by the
    operation; activations that are computed again."""
    inputs = layers.Input((8,))
    hidden = layers.Dense(8)(inputs)
    noted = layers.Dense(3, "softmax", name="noted")(hidden)
    plain = layers.Lambda(tf.nn.softmax, name="plain")(layers.Dense(3)(hidden))
    model = keras.Model(inputs, {"noted": noted, "plain": plain})
    model.compile(keras.optimizers.SGD(1e-6), "sparse_categorical_crossentropy")
    classes = np.arange(ROWS) % 3
    given = {"x": 300 * numbers(ROWS, 8), "y": {"noted": classes, "plain": classes}}
    return model, given, {"parts": 2, "micro_batches": 2, "recompute": True}


CASES = (skips, masked, nested, compares_rows, added_sums, half_precision, sure)


def trained(build: Callable[[], Case], split: bool) -> tuple[Any, dict[str, Any], Any]:
    keras.utils.set_random_seed(1)
    model, given, options = build()
    subject = sublet.split(model, batch_size=8, **options) if split else model
    fully = {"validation_data": tuple(given.values())} if build is skips else {}
    history = subject.fit(
        **given, batch_size=8, epochs=2, shuffle=False, verbose=0, **fully
    ).history
    outputs = subject.predict(given["x"], batch_size=8, verbose=0) if fully else ()
    return model, history, outputs


def differences(build: Callable[[], Case]) -> dict[str, float]:
    """The largest of weights, of histories and of predictions."""
    whole, known, outputs = trained(build, split=False)
    parts, found, again = trained(build, split=True)
    assert known.keys() == found.keys(), (known.keys(), found.keys())
    pairs = {
        "weights": (whole.get_weights(), parts.get_weights()),
        "history": ([known[name] for name in known], [found[name] for name in known]),
        "predictions": (tf.nest.flatten(outputs), tf.nest.flatten(again)),
    }
    return {
        name: max(float(np.abs(np.subtract(a, b)).max()) for a, b in zip(*both, strict=True))
        for name, both in pairs.items()
        if both[0]
    }


def dropout() -> dict[str, Any]:
    """Random numbers are the same when activations are computed again; statistics take one step
    for each batch; what is not the same is said."""
    found, said = [], io.StringIO()
    for recompute in (False, True):
        keras.utils.set_random_seed(1)
        hidden = [layers.Dense(16, "relu"), layers.Dropout(0.5), layers.BatchNormalization()]
        model = keras.Sequential([layers.Input((8,)), *hidden, layers.Dense(1)])
        model.compile("sgd", "mse")
        with contextlib.redirect_stderr(said):
            parts = sublet.split(model, parts=2, batch_size=8, recompute=recompute)
        parts.fit(numbers(16, 8), numbers(16, 1), batch_size=8, shuffle=False, verbose=0)
        found.append(model.get_weights())
    return {
        "said": said.getvalue(),
        "differ": max(float(np.abs(a - b).max()) for a, b in zip(*found, strict=True)),
        "moved": float(np.abs(found[0][4]).max()),
    }


def looks() -> dict[str, Any]:
    """The table, the records, a file; and the uncut model, which goes on."""
    hidden = [layers.Dense(16, "relu") for _ in range(4)]
    model = keras.Sequential([layers.Input((16,)), *hidden], name="tower")
    model.compile("adam", "mse")
    given = {"x": numbers(8, 16), "y": numbers(8, 16)}
    parts = sublet.split(model, batch_size=8, devices=["CPU:0", "CPU:1"])
    parts.fit(**given, verbose=0)
    parts.save("parts.keras")
    again = keras.models.load_model("parts.keras")
    same = [
        float(np.abs(np.subtract(a, b)).max())
        for a, b in zip(model.get_weights(), again.get_weights(), strict=True)
    ]
    return {
        "repr": repr(parts),
        "memory": [[one.device, one.weights, one.total, one.peak] for one in parts.memory],
        "devices": sorted({one.value.device[-5:] for one in model.trainable_variables}),
        "slots": sorted({one.value.device[-5:] for one in parts.optimizer.variables}),
        "saved": max(same),
        "uncut": float(model.evaluate(**given, verbose=0)),
        "loaded": float(again.evaluate(**given, verbose=0)),
    }


def peaks() -> list[int]:
    """The most that a step takes beyond what is there before, if activations are kept, and if they
    are computed again."""
    found = []
    x = numbers(4096, 64)
    for recompute in (False, True):
        hidden = [layers.Dense(64, "relu") for _ in range(8)]
        model = keras.Sequential([layers.Input((64,)), *hidden])
        model.compile("sgd", "mse")
        parts = sublet.split(model, parts=2, recompute=recompute)
        parts.train_on_batch(x, x)
        before = tf.config.experimental.get_memory_info("CPU:0")["current"]
        tf.config.experimental.reset_memory_stats("CPU:0")
        parts.train_on_batch(x, x)
        found.append(tf.config.experimental.get_memory_info("CPU:0")["peak"] - before)
    return found


class OwnStep(keras.Model):  # type: ignore[misc]
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


class Subclassed(keras.Model):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        return x


class AcrossRows(layers.Layer):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        return x - tf.reduce_mean(x, 0, keepdims=True)


def refusals() -> dict[str, str]:
    def mlp(*more: Any) -> Any:
        return keras.Sequential([layers.Input((4,)), layers.Dense(4), *more, layers.Dense(1)])

    inputs = layers.Input((4,))
    tied = layers.Dense(4)
    last = tied(layers.ReLU()(tied(inputs)))
    stateful = [layers.Input(batch_shape=(2, 3, 4)), layers.LSTM(2, stateful=True), layers.Dense(1)]
    asked: dict[str, tuple[Any, dict[str, Any]]] = {
        "no model": (7, {"parts": 2}),
        "one part": (mlp(), {"parts": 1}),
        "many parts": (mlp(), {"parts": 4, "devices": ["CPU:0", "CPU:1", "CPU:2", "GPU:0"]}),
        "more parts than layers": (mlp(), {"parts": 3}),
        "one device": (mlp(), {"parts": 2, "devices": ["CPU:0"]}),
        "odd device": (mlp(), {"devices": ["CPU:0", "tpu"]}),
        "twice": (mlp(), {"devices": ["CPU:0", "/cpu:0"]}),
        "no list": (mlp(), {"devices": "CPU:0"}),
        "too late": (mlp(), {"devices": ["CPU:0", "CPU:7"]}),
        "no rows": (mlp(), {"parts": 2, "batch_size": 0}),
        "not built": (keras.Sequential([layers.Dense(4), layers.Dense(1)]), {"parts": 2}),
        "no graph": (Subclassed(), {"parts": 2}),
        "own step": (OwnStep(inputs, layers.Dense(1)(last)), {"parts": 2}),
        "stateful": (keras.Sequential(stateful), {"parts": 2}),
        "tied": (keras.Model(inputs, last), {"parts": 2}),
        "across rows": (mlp(AcrossRows()), {"parts": 2}),
    }
    said = {}
    for name, (model, options) in asked.items():
        try:
            sublet.split(model, **options)
        except sublet.BadRequest as why:
            said[name] = str(why)
        if hasattr(model, "variables"):
            assert all(one.value.device.endswith("CPU:0") for one in model.variables), name
    parts = sublet.split(mlp(), parts=2)
    try:
        parts.compile("sgd", "mse", jit_compile=True)
    except ValueError as why:
        said["xla"] = str(why)
    return said


def main() -> None:
    built = sublet.split(lambda: skips()[0], parts=3)  # Makes the devices.
    answer = {
        "built": [one.device for one in built.memory],
        "same": {build.__name__: differences(build) for build in CASES},
        "dropout": dropout(),
        "looks": looks(),
        "peaks": peaks(),
        "refused": refusals(),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
