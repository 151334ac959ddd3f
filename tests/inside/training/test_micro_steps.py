"""Batches in micro-batches give the weights, losses, metrics and predictions of whole batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import sublet
from sublet.inside.training import batch, install, micro_batches

pytestmark = pytest.mark.slow

ROWS, BATCH, PART = 44, 16, 5
Built = tuple[Any, dict[str, Any]]


def numbers(*shape: int) -> Any:
    return np.random.default_rng(len(shape) + shape[-1]).normal(size=shape).astype("float32")


def mlp(*more: Any) -> Any:
    """With losses of layers: of weights, and of what a layer puts out."""
    first = layers.Dense(16, "relu", kernel_regularizer="l2", activity_regularizer="l2")
    return keras.Sequential([layers.Input((8,)), first, *more, layers.Dense(1)])


def plain() -> Built:
    model = mlp()
    optimizer = keras.optimizers.AdamW(0.01, global_clipnorm=0.1, use_ema=True)
    model.compile(optimizer, "mse", metrics=["mae"])
    return model, {"x": numbers(ROWS, 8), "y": numbers(ROWS, 1)}


def of_a_generator() -> Built:
    model = mlp()
    model.compile("adam", "mse", metrics=["mae"], steps_per_execution=2)
    x, y = numbers(ROWS, 8), numbers(ROWS, 1)

    def batches() -> Any:
        while True:
            for begin in range(0, ROWS, BATCH):
                yield x[begin : begin + BATCH], y[begin : begin + BATCH]

    return model, {"x": batches(), "steps_per_epoch": 3}


def weighted_sum() -> Built:
    model = mlp()
    loss = keras.losses.MeanSquaredError(reduction="sum")
    model.compile(keras.optimizers.SGD(1e-4), loss, weighted_metrics=["mse"])
    weights = np.linspace(0, 2, ROWS, dtype="float32")
    return model, {"x": numbers(ROWS, 8), "y": numbers(ROWS, 1), "sample_weight": weights}


def divided_by_weights() -> Built:
    model = mlp()
    model.compile("sgd", keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"))
    weights = np.linspace(0, 2, ROWS, dtype="float32")
    return model, {"x": numbers(ROWS, 8), "y": numbers(ROWS, 1), "sample_weight": weights}


def weighted_classes() -> Built:
    model = keras.Sequential([layers.Input((8,)), layers.Dense(3, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    weights = {0: 1.0, 1: 5.0, 2: 0.1}
    return model, {"x": numbers(ROWS, 8), "y": np.arange(ROWS) % 3, "class_weight": weights}


def masked() -> Built:
    inputs = layers.Input((12,), dtype="int32")
    embedded = layers.Embedding(20, 8, mask_zero=True)(inputs)
    hidden = layers.LSTM(8, return_sequences=True)(embedded)
    model = keras.Model(inputs, layers.Dense(5, "softmax")(hidden))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    x = np.random.default_rng(0).integers(1, 20, (ROWS, 12))
    for row in range(ROWS):
        x[row, 3 + row % 9 :] = 0
    return model, {"x": x, "y": x % 5}


def several_outputs() -> Built:
    inputs = layers.Input((8,))
    hidden = layers.Dense(8, "relu")(inputs)
    size, kind = layers.Dense(1, name="size")(hidden), layers.Dense(3, "softmax", name="kind")
    model = keras.Model(inputs, {"size": size, "kind": kind(hidden)})
    model.compile(
        "adam",
        {"size": "mse", "kind": "sparse_categorical_crossentropy"},
        loss_weights={"size": 0.3, "kind": 2.0},
        metrics={"size": ["mae"], "kind": ["accuracy"]},
    )
    y = {"size": numbers(ROWS, 1), "kind": np.arange(ROWS) % 3}
    return model, {"x": numbers(ROWS, 8), "y": y}


def own_mean() -> Built:
    """A loss and a metric of the program's own, which put out one number for a batch."""
    model = mlp()
    model.compile(
        "sgd",
        lambda true, found: tf.reduce_mean(tf.square(true - found)),
        metrics=[lambda true, found: tf.reduce_mean(tf.abs(true - found))],
    )
    return model, {"x": numbers(ROWS, 8), "y": numbers(ROWS, 1)}


def own_sum() -> Built:
    model = keras.Sequential([layers.Input((8,)), layers.Dense(1)])
    loss = lambda true, found: tf.reduce_sum(tf.square(true - found))  # noqa: E731
    model.compile(keras.optimizers.SGD(1e-3), loss)
    return model, {"x": numbers(ROWS, 8), "y": numbers(ROWS, 1)}


class OwnLoss(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = layers.Dense(1, kernel_regularizer="l2")
        self.unused = layers.Dense(1)

    def call(self, x: Any) -> Any:
        self.unused(x)
        return self.layer(x)

    def compute_loss(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True
    ) -> Any:
        return tf.reduce_mean(tf.square(y - y_pred)) + tf.add_n(self.losses)


def own_compute_loss() -> Built:
    """Also: weights without gradients, which an optimizer with decay must leave alone."""
    model = OwnLoss()
    model.compile(keras.optimizers.AdamW(0.01))
    return model, {"x": numbers(ROWS, 8), "y": numbers(ROWS, 1)}


class MaskedDense(layers.Layer):  # type: ignore[misc]
    """Assigns to its own weights in each call, as masked convolutions do."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(8)

    def call(self, x: Any) -> Any:
        if self.dense.built:
            self.dense.kernel.assign(self.dense.kernel * np.tri(8, dtype="f"))
        return self.dense(x)


def a_batch_size_for_inputs() -> Built:
    """Keras computes other batches with such a model, too."""
    inputs = keras.Input((8,), batch_size=BATCH)
    model = keras.Model(inputs, layers.Dense(1)(MaskedDense()(inputs)))
    model.compile("sgd", "mse")
    return model, {"x": numbers(ROWS, 8), "y": numbers(ROWS, 1)}


class OwnStep(keras.Model):  # type: ignore[misc]
    """Changes what the program's own train_step does at some place."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()
        self.slow = mlp()
        self.slow.trainable = False
        self.noise = 0.0
        self.tracker = keras.metrics.Mean(name="tracked")
        self.queue = self.add_weight(shape=(50, 1), trainable=False, name="queue")

    def call(self, x: Any) -> Any:
        drawn = tf.random.normal(tf.shape(x)) if self.noise else 0.0
        return self.inner(x + self.noise * drawn)

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            found = self(x, training=True)
            loss = self.loss_of(y, found) + tf.add_n(self.inner.losses)
        weights = self.inner.trainable_weights
        gradients = self.changed(tape.gradient(loss, weights))
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.tracker.update_state(loss)
        self.end(found)
        return {
            "tracked": self.tracker.result(),
            "loss": loss,
            "rate": self.optimizer.learning_rate,
        }

    def loss_of(self, y: Any, found: Any) -> Any:
        return tf.reduce_mean(tf.square(y - found))

    def changed(self, gradients: list[Any]) -> list[Any]:
        return gradients

    def end(self, found: Any) -> None:
        for slow, fast in zip(self.slow.weights, self.inner.weights, strict=True):
            slow.assign(0.9 * slow + 0.1 * fast)


def of(model: Any, **options: Any) -> Built:
    model.compile(keras.optimizers.Adam(0.01), "mse", **options)
    return model, {"x": numbers(ROWS, 8), "y": numbers(ROWS, 1)}


def own_step() -> Built:
    """Also: an average of weights that the step keeps, and a number that comes from no metric."""
    return of(OwnStep())


class Summing(OwnStep):
    """A sum over rows has no place for what counts once for a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.Sequential([layers.Input((8,)), layers.Dense(1)])
        self.slow = keras.Sequential([layers.Input((8,)), layers.Dense(1)])

    def loss_of(self, y: Any, found: Any) -> Any:
        return tf.reduce_sum(tf.square(y - found))

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(y, self(x, training=True))
        weights = self.inner.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.tracker.update_state(loss)
        return {"tracked": self.tracker.result()}

    def test_step(self, data: Any) -> Any:
        x, y = data
        self.tracker.update_state(self.loss_of(y, self(x)))
        return {"tracked": self.tracker.result()}


def own_step_of_sums() -> Built:
    return of(Summing())


class Keras(OwnStep):
    def train_step(self, data: Any) -> Any:
        return keras.Model.train_step(self, data)


def own_step_that_calls_keras() -> Built:
    return of(Keras(), metrics=["mae"])


def without_graphs() -> Built:
    model = mlp()
    model.compile("adam", "mse", metrics=["mae"], run_eagerly=True)
    return model, {"x": numbers(ROWS, 8), "y": numbers(ROWS, 1)}


def with_xla() -> Built:
    model = mlp()
    model.compile("adam", "mse", metrics=["mae"], jit_compile=True)
    return model, {"x": numbers(ROWS, 8), "y": numbers(ROWS, 1)}


SAME = [
    *(plain, of_a_generator, weighted_sum, divided_by_weights, weighted_classes, masked),
    *(several_outputs, own_mean, own_sum, own_compute_loss, a_batch_size_for_inputs),
    *(without_graphs, with_xla, own_step, own_step_of_sums, own_step_that_calls_keras),
]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    for module in ("micro_batches", "steps", "install"):
        monkeypatch.setattr(f"sublet.inside.training.{module}.say", lines.append)
    return lines


@pytest.fixture(autouse=True)
def _only_some_rows_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        micro_batches.MicroBatches,
        "most",
        lambda self, data, attempt, cost: min(PART, int(batch.rows(data))),
    )


def trained(
    build: Callable[[], Built], split: bool, exact: bool = False
) -> tuple[Any, dict[str, Any], Any]:
    """The model after an epoch, its history, and what it predicts."""
    keras.utils.set_random_seed(1)
    model, given = build()
    if split:
        install.choose(model, exact=exact)
    size = {} if "steps_per_epoch" in given else {"batch_size": BATCH}
    check = {"validation_data": (given["x"], given["y"])} if "y" in given else {}
    history = model.fit(epochs=1, shuffle=False, verbose=0, **given, **size, **check).history
    return model, history, model.predict(given["x"], verbose=0, **size) if "y" in given else []


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("build", SAME, ids=lambda build: build.__name__)
def test_the_result_is_that_of_whole_batches(build: Callable[[], Built], said: list[str]) -> None:
    whole, known, outputs = trained(build, split=False)
    parts, found, again = trained(build, split=True)
    assert any("training in 4 micro-batches of 4" in line for line in said)
    for one, other in zip(whole.get_weights(), parts.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)
    assert known.keys() == found.keys()
    for name in known:
        np.testing.assert_allclose(known[name], found[name], rtol=1e-4, atol=1e-6)
    for one, other in zip(tf.nest.flatten(outputs), tf.nest.flatten(again), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_statistics_of_a_batch_move_as_far_as_with_whole_batches(said: list[str]) -> None:
    def build() -> Built:
        model = mlp(layers.BatchNormalization(), layers.Dropout(0.1))
        model.compile(keras.optimizers.SGD(0.0), "mse")
        return model, {"x": numbers(ROWS, 8), "y": numbers(ROWS, 1)}

    whole, _, _ = trained(build, split=False)
    parts, _, _ = trained(build, split=True)
    one, other = whole.layers[1], parts.layers[1]
    np.testing.assert_allclose(one.moving_mean, other.moving_mean, rtol=1e-4)
    assert "BatchNormalization sees 4 rows" in said[0]
    assert "Dropout draws other random numbers" in said[0]


class Mixing(layers.Layer):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        return x - tf.reduce_mean(x, axis=0)


class Counted(layers.Layer):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        return tf.ensure_shape(x, [BATCH, None])


class Twice(OwnStep):
    def end(self, found: Any) -> None:
        weights = self.inner.trainable_weights
        self.optimizer.apply([tf.zeros_like(one) for one in weights], weights)


class Clipping(OwnStep):
    def changed(self, gradients: list[Any]) -> list[Any]:
        return [tf.clip_by_norm(one, 0.1) for one in gradients]


class Comparing(OwnStep):
    def loss_of(self, y: Any, found: Any) -> Any:
        return tf.reduce_mean(tf.square(found - tf.transpose(found)))


class Remembering(OwnStep):
    def changed(self, gradients: list[Any]) -> list[Any]:
        self.queue.assign(tf.concat([tf.square(gradients[-1])[None], self.queue[1:]], 0))
        return gradients


class Keeping(OwnStep):
    def end(self, found: Any) -> None:
        self.queue.assign(tf.concat([found, self.queue], 0)[:50])


class Counting(OwnStep):
    def __init__(self) -> None:
        super().__init__()
        self.steps = tf.Variable(0)

    def end(self, found: Any) -> None:
        self.steps.assign_add(1)


class Measuring(OwnStep):
    def end(self, found: Any) -> None:
        self.tracker.update_state(tf.norm(self.inner.trainable_weights[0]))


def contrastive() -> Built:
    model = mlp()
    model.compile("sgd", lambda _, found: tf.reduce_mean(tf.square(found - tf.transpose(found))))
    return model, {"x": numbers(ROWS, 8), "y": numbers(ROWS, 1)}


def mixing() -> Built:
    model = mlp(Mixing())
    model.compile("sgd", "mse")
    return model, {"x": numbers(ROWS, 8), "y": numbers(ROWS, 1)}


def counted() -> Built:
    model = mlp(Counted())
    model.compile("sgd", "mse")
    return model, {"x": numbers(3 * BATCH, 8), "y": numbers(3 * BATCH, 1)}


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda: of(Twice()), "Twice.train_step applies gradients more than once"),
        (lambda: of(Clipping()), "Clipping.train_step changes gradients before it applies them"),
        (lambda: of(Comparing()), "the loss of Comparing.train_step is no sum and no mean"),
        (lambda: of(Remembering()), "Remembering.train_step keeps something of a whole batch"),
        (lambda: of(Keeping()), "Keeping.train_step keeps something of the rows in"),
        (lambda: of(Counting()), "Counting.train_step changes what is no variable of Keras"),
        (lambda: of(Measuring()), "Measuring.train_step measures by tracked/total what has just"),
        (contrastive, "the loss of Sequential is no sum and no mean over the rows of a batch"),
        (mixing, "what Sequential computes for a row depends on the other rows of its batch"),
        (counted, "Sequential does not compute fewer rows than its batches have"),
    ],
)
def test_a_model_that_cannot_be_split_is_trained_whole_and_that_is_said(
    build: Callable[[], Built], why: str, said: list[str]
) -> None:
    whole, _, _ = trained(build, split=False)
    same, _, _ = trained(build, split=True)
    assert any(one.startswith(why) and one.endswith(": its batches are not split") for one in said)
    for one, other in zip(whole.get_weights(), same.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_would_not_be_the_same_is_not_split_if_that_was_asked(said: list[str]) -> None:
    def build() -> Built:
        model = mlp(layers.BatchNormalization())
        model.compile("sgd", "mse")
        return model, {"x": numbers(ROWS, 8), "y": numbers(ROWS, 1)}

    whole, _, _ = trained(build, split=False)
    same, _, _ = trained(build, split=True, exact=True)
    why = "in micro-batches BatchNormalization sees fewer rows at a time"
    assert said[0] == f"{why}: its batches are not split"
    assert not any("training in" in line for line in said)
    for one, other in zip(whole.get_weights(), same.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def noisy() -> Built:
    model = OwnStep()
    model.noise = 0.5
    return of(model)


def test_a_step_that_draws_random_numbers_is_split_and_that_is_said(said: list[str]) -> None:
    model, _, _ = trained(noisy, split=True)
    assert "micro-batches of 4; OwnStep.train_step draws other random numbers" in said[0]
    assert int(model.optimizer.iterations) == 3
    said.clear()
    trained(noisy, split=True, exact=True)
    why = "in micro-batches OwnStep.train_step draws other random numbers"
    assert said[0] == f"{why}: its batches are not split"


def test_fit_of_sublet_refuses_what_it_cannot_train() -> None:
    with pytest.raises(sublet.BadRequest, match="str is not a model of Keras 3"):
        sublet.fit("model", [1.0])
