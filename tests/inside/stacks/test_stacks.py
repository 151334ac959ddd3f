"""Models that are trained as one become what each would have become alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from sublet.inside.stacks.architecture import architecture
from sublet.inside.stacks.batches import ArrayBatches, Batches, DatasetBatches
from sublet.inside.stacks.difference import difference, output_difference
from sublet.inside.stacks.group import Group, serial, stacks
from sublet.inside.stacks.stack import Stack
from sublet.inside.stacks.trainer import CannotStack
from sublet.inside.sweeping import probe
from sublet.inside.training.refused import Refused

pytestmark = pytest.mark.slow

ROWS, BATCH, EPOCHS = 44, 16, 2


def numbers(*shape: int) -> Any:
    return np.random.default_rng(len(shape) + shape[-1]).normal(size=shape).astype("float32")


def words() -> Any:
    return np.random.default_rng(0).integers(0, 11, size=(ROWS, 6))


def mlp(seed: int = 0, rate: float = 0.01, drop: float = 0.2, decay: float = 0.01) -> Any:
    keras.utils.set_random_seed(seed)
    regularizer = keras.regularizers.L2(decay)
    model = keras.Sequential(
        [
            layers.Input((8,)),
            layers.Dense(12, "relu", kernel_regularizer=regularizer),
            layers.Dropout(drop),
            layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(rate), "mse", metrics=["mae"])
    return model


X, Y = numbers(ROWS, 8), numbers(ROWS, 1)
TRIALS: tuple[dict[str, Any], ...] = (
    {"seed": 1, "rate": 0.01, "drop": 0.2, "decay": 0.01},
    {"seed": 2, "rate": 0.003, "drop": 0.0, "decay": 0.0},
    {"seed": 3, "rate": 0.02, "drop": 0.5, "decay": 0.1},
)


def batches(x: Any = X, y: Any = Y, orders: Any = None) -> ArrayBatches:
    return ArrayBatches((x, y), BATCH, orders)


def stacked(models: list[Any], data: Batches | None = None, most: int | None = None) -> Group:
    return stacks(models, (data or batches()).start(), most)


def fitted(model: Any, x: Any = X, y: Any = Y, epochs: int = EPOCHS, **options: Any) -> Any:
    return model.fit(
        x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, **options
    ).history


def seeds(model: Any) -> list[list[int]]:
    found = [one for one in model.variables if one.path.endswith("seed_generator_state")]
    return [np.asarray(one.value).tolist() for one in found]


@pytest.fixture
def double() -> Iterator[None]:
    """Double precision tells other mathematics from other rounding."""
    kept = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(kept[0])
    keras.config.set_dtype_policy(kept[1])


def test_trials_equal_what_fit_makes_of_each() -> None:
    """With their own learning rates, dropout masks and regularisation."""
    trials = [mlp(**trial) for trial in TRIALS]
    stack = stacked(trials)
    data = batches()
    logs = [stack.train_epoch(data) for _ in range(EPOCHS)][-1]
    shown = stack.evaluate(batches())
    stack.write_back()
    for place, trial in enumerate(TRIALS):
        alone = mlp(**trial)
        history = fitted(alone)
        for name in ("loss", "mae"):
            assert logs[place][name] == pytest.approx(history[name][-1], rel=1e-4)
        found = alone.evaluate(X, Y, batch_size=BATCH, verbose=0, return_dict=True)
        assert shown[place] == pytest.approx(found, rel=1e-4)
        assert difference(trials[place], alone) < 1e-5
        if trial["drop"]:
            assert seeds(trials[place]) == seeds(alone)


def convolutional() -> Any:
    return [
        layers.Input((8, 8, 3)),
        layers.Conv2D(4, 3, activation="relu"),
        layers.SeparableConv2D(4, 3, padding="same", use_bias=False),
        layers.BatchNormalization(),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(1),
    ], numbers(ROWS, 8, 8, 3)


def augmented() -> Any:
    """TensorFlow vectorises no rotation; a kernel of shape [1, n, 1] looks like a bias to Keras."""
    return [
        layers.Input((6, 6, 1)),
        layers.RandomRotation(0.1, seed=3),
        layers.Reshape((6, 6)),
        layers.Conv1D(1, 1),
        layers.Flatten(),
        layers.Dense(1),
    ], numbers(ROWS, 6, 6, 1)


def recurrent() -> Any:
    return [
        layers.Input((6,)),
        layers.Embedding(11, 5, mask_zero=True),
        layers.Bidirectional(layers.LSTM(4, return_sequences=True)),
        layers.GRU(3, dropout=0.2),
        layers.LayerNormalization(),
        layers.Dense(1),
    ], words()


def attentive() -> Any:
    given = keras.Input((6,))
    x = layers.Embedding(11, 8)(given)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4, dropout=0.1)(x, x))
    x = layers.GaussianNoise(0.1)(x)
    return keras.Model(given, layers.Dense(1)(layers.Flatten()(x))), words()


@pytest.mark.parametrize("layers_of", [convolutional, augmented, recurrent, attentive])
def test_all_kinds_of_layers_equal_what_fit_makes_of_them(
    layers_of: Any, request: pytest.FixtureRequest
) -> None:
    """The key bias of attention has a gradient of rounding alone, which Adam makes as large as any:
    outputs are compared. So would be a bias before BatchNormalization; it has none here."""
    if layers_of is not augmented:  # Keras' rotations know no double precision.
        request.getfixturevalue("double")

    def build(seed: int) -> Any:
        keras.utils.set_random_seed(seed)
        made, _ = layers_of()
        model = keras.Sequential(made) if isinstance(made, list) else made
        model.compile(keras.optimizers.Adam(0.003 * seed, clipnorm=1.0), "mse")
        return model

    x = layers_of()[1]
    trials = [build(1), build(2)]
    stack = stacked(trials, batches(x))
    stack.train_epoch(batches(x))
    stack.write_back()
    for trial, seed in zip(trials, (1, 2), strict=True):
        alone = build(seed)
        fitted(alone, x, epochs=1)
        assert output_difference(trial, alone, x) < (1e-4 if layers_of is augmented else 1e-9)


@pytest.mark.usefixtures("double")
def test_losses_take_what_probabilities_were_made_of_as_alone() -> None:
    """Keras computes cross-entropies from there; from the probabilities, which it clips, sure and
    wrong answers would have no gradient."""

    def build(seed: int) -> Any:
        keras.utils.set_random_seed(seed)
        given = keras.Input((8,))
        x = layers.Dense(6, "relu")(given)
        normalised = layers.LayerNormalization(axis=-1)(layers.Dense(3)(x))
        image = layers.Conv2D(1, 1, activation="sigmoid")(layers.Reshape((3, 1, 2))(x))
        made = [
            layers.Dense(3, "softmax")(x),
            layers.Dense(3, tf.nn.softmax)(x),
            layers.Identity()(layers.Softmax()(normalised)),
            layers.Reshape((3,))(layers.Dense(3)(x)),
            image,
        ]
        made[3] = layers.Activation("sigmoid")(made[3])
        model = keras.Model(given, made)
        kinds = ["sparse_categorical_crossentropy"] * 3 + ["binary_crossentropy"] * 2
        model.compile(keras.optimizers.RMSprop(0.25 * seed), kinds)
        return model

    draw = np.random.default_rng(0)
    kinds, flags = draw.integers(0, 3, ROWS), draw.integers(0, 2, (ROWS, 3))
    data = ArrayBatches((X, [kinds, kinds, kinds, flags, flags[:, :, None, None]]), BATCH)
    trials, alone = ([build(seed) for seed in (1, 2)] for _ in range(2))
    for trainer in (stacked(trials, data), serial(alone)):
        for _ in range(4):
            trainer.train_epoch(data)
        trainer.write_back()
    for trial, other in zip(trials, alone, strict=True):
        assert difference(trial, other) < 1e-9


OPTIMIZERS: tuple[Callable[[float], Any], ...] = (
    lambda rate: keras.optimizers.SGD(rate, momentum=1 - 8 * rate, nesterov=True),
    lambda rate: keras.optimizers.Adam(rate, beta_2=1 - rate / 8, amsgrad=True),
    lambda rate: keras.optimizers.AdamW(rate, weight_decay=rate, global_clipnorm=10 * rate),
    lambda rate: keras.optimizers.RMSprop(rate, momentum=rate, clipvalue=rate, centered=True),
    lambda rate: keras.optimizers.Adagrad(rate),
    lambda rate: keras.optimizers.Nadam(rate, beta_1=1 - 8 * rate),
    lambda rate: keras.optimizers.Lion(rate, use_ema=True, ema_overwrite_frequency=2),
    lambda rate: keras.optimizers.Adam(
        keras.optimizers.schedules.CosineDecay(rate, 4), gradient_accumulation_steps=2
    ),
    lambda rate: keras.optimizers.Adafactor(rate),
)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("place", range(len(OPTIMIZERS)))
def test_optimizers_take_the_steps_that_they_take_alone(place: int) -> None:
    """Their numbers are powers of two: Keras itself rounds some to single precision."""

    def build(seed: int) -> Any:
        model = mlp(seed)
        model.compile(OPTIMIZERS[place](seed / 64), "mse")
        return model

    trials = [build(1), build(2)]
    stack = stacked(trials)
    stack.train_epoch(batches())
    stack.write_back()
    for trial, seed in zip(trials, (1, 2), strict=True):
        alone = build(seed)
        trainer = serial([alone])
        trainer.train_epoch(batches())
        assert difference(trial, alone) < 1e-9


def test_a_trial_that_diverges_harms_no_other() -> None:
    broken = dict(TRIALS[0], rate=1e30)
    trials = [mlp(**broken), mlp(**TRIALS[1])]
    stack = stacked(trials)
    data = batches()
    logs = [stack.train_epoch(data) for _ in range(EPOCHS)][-1]
    stack.write_back()
    alone = mlp(**TRIALS[1])
    fitted(alone)
    assert np.isnan(logs[0]["loss"])
    assert difference(trials[1], alone) < 1e-5


def test_batch_normalisation_with_adam_comes_out_as_alone() -> None:
    """Numbers that differ are as exact as those of one model: `1 - 0.999` in single precision would
    take them apart by a thousand times as much."""

    def build(seed: int) -> Any:
        keras.utils.set_random_seed(seed)
        made = [layers.Dense(8), layers.BatchNormalization(), layers.ReLU(), layers.Dense(1)]
        model = keras.Sequential([layers.Input((8,)), *made])
        model.compile(keras.optimizers.Adam(0.005, beta_2=0.999 - 0.001 * seed), "mse")
        return model

    trials, alone = ([build(seed) for seed in (0, 1)] for _ in range(2))
    trainer, single = stacked(trials), serial(alone)
    for _ in range(8):
        trainer.train_epoch(batches())
        single.train_epoch(batches())
    trainer.write_back()
    for trial, other in zip(trials, alone, strict=True):
        assert output_difference(trial, other, X, training=True) < 1e-5


def test_those_that_leave_are_written_back_and_the_others_go_on() -> None:
    trials = [mlp(**trial) for trial in TRIALS]
    trainer = stacked(trials, most=2)
    data = batches()
    trainer.train_epoch(data)
    trainer.keep([0, 2])
    trainer.train_epoch(data)
    trainer.write_back()
    assert trainer.models == (trials[0], trials[2])
    for trial, epochs in zip(range(3), (2, 1, 2), strict=True):
        alone = mlp(**TRIALS[trial])
        fitted(alone, epochs=epochs)
        assert difference(trials[trial], alone) < 1e-5


def test_a_trial_takes_over_the_weights_of_another_and_keeps_its_own_numbers() -> None:
    trials = [mlp(**trial) for trial in TRIALS]
    trainer = stacked(trials)
    trainer.train_epoch(batches())
    trainer.copy(0, 2)
    trainer.set(2, "dropout.rate", 0.1)
    trainer.set(2, "learning_rate", 0.5)
    assert trainer.numbers(0)["learning_rate"] == pytest.approx(0.01)
    trainer.write_back()
    assert difference(trials[0], trials[2]) == 0
    assert float(trials[2].optimizer.learning_rate) == 0.5
    assert trials[2].layers[1].rate == pytest.approx(0.1)
    with pytest.raises(Refused, match=r"dropout\.rate"):
        trainer.set(0, "temperature", 1.0)


def test_a_stack_that_runs_out_of_memory_goes_on_as_two_and_loses_no_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trials = [mlp(**trial) for trial in TRIALS]
    trainer = stacked(trials)
    train = Stack.train

    def fails_in_the_middle(self: Stack, chunk: Any) -> None:
        if len(self.models) < 3:
            return train(self, chunk)
        train(self, chunk.after(chunk.steps - 1) if chunk.steps > 1 else chunk)
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    def done(self: Stack) -> int:
        return 1

    monkeypatch.setattr(Stack, "train", fails_in_the_middle)
    monkeypatch.setattr(Stack, "done", property(done))
    trainer.train_epoch(batches(np.tile(X[:BATCH], (3, 1)), np.tile(Y[:BATCH], (3, 1))))
    trainer.write_back()
    assert [len(member.models) for member in trainer.members] == [2, 1]
    for trial, settings in zip(trials, TRIALS, strict=True):
        alone = mlp(**settings)
        alone.fit(
            np.tile(X[:BATCH], (3, 1)),
            np.tile(Y[:BATCH], (3, 1)),
            batch_size=BATCH,
            shuffle=False,
            verbose=0,
        )
        assert difference(trial, alone) < 1e-5


def test_trials_have_orders_of_their_own_when_asked() -> None:
    """Also in stacks that have a part of them."""
    trials = [mlp(**trial) for trial in TRIALS]
    orders = [np.random.default_rng(trial).permutation(ROWS) for trial in range(3)]
    data = batches(orders=orders)
    trainer = stacked(trials, data, most=2)
    trainer.train_epoch(data)
    trainer.write_back()
    for place, trial in enumerate(TRIALS):
        alone = mlp(**trial)
        fitted(alone, X[orders[place]], Y[orders[place]], epochs=1)
        assert difference(trials[place], alone) < 1e-5


def test_a_tf_data_set_with_weights_feeds_all() -> None:
    weights = np.linspace(0, 2, ROWS, dtype="float32")
    data = tf.data.Dataset.from_tensor_slices((X, Y, weights)).batch(BATCH)
    trials = [mlp(**trial) for trial in TRIALS[:2]]
    stack = stacked(trials, DatasetBatches(data))
    logs = stack.train_epoch(DatasetBatches(data))
    alone = mlp(**TRIALS[0])
    history = alone.fit(data, shuffle=False, verbose=0).history
    stack.write_back()
    assert difference(trials[0], alone) < 1e-5
    assert logs[0]["loss"] == pytest.approx(history["loss"][-1], rel=1e-4)


def test_a_probe_leaves_a_stack_as_it_was() -> None:
    trials = [mlp(**trial) for trial in TRIALS[:2]]
    trainer = stacked(trials)
    (stack,) = trainer.members
    assert isinstance(stack, Stack)
    with stack.unchanged():
        found = probe.timed(trainer, next(iter(batches().epoch())))
    assert found.start > found.step > 0
    trainer.train_epoch(batches())
    trainer.write_back()
    for trial, settings in zip(trials, TRIALS, strict=False):
        alone = mlp(**settings)
        fitted(alone, epochs=1)
        assert difference(trial, alone) < 1e-5


def test_architectures_differ_by_shapes_and_kinds_and_not_by_numbers() -> None:
    assert architecture(mlp(**TRIALS[0])) == architecture(mlp(**TRIALS[1]))
    other = mlp()
    other.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    assert architecture(other) != architecture(mlp())
    with pytest.raises(CannotStack, match="optimizer"):
        stacked([mlp(), other])


class Sorts(layers.Layer):  # type: ignore[misc]
    """Does what TensorFlow cannot vectorise."""

    def call(self, x: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(np.sort, [x], tf.float32), x.shape)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


class Looks(layers.Layer):  # type: ignore[misc]
    """Has tables of its own: of words, which may occur twice, or of places, which do not."""

    def __init__(self, words: bool) -> None:
        super().__init__(name="looks")
        self.table, self._words = layers.Embedding(11, 4, name="table"), words

    def call(self, x: Any) -> Any:
        return self.table(x) if self._words else x[..., None] + self.table(keras.ops.arange(6))


class Own(keras.Model):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        return x


def test_what_cannot_be_stacked_is_named_with_the_reason() -> None:
    made = keras.Sequential([layers.Input((8,)), Sorts(name="sorts"), layers.Dense(1)])
    with pytest.raises(CannotStack, match="not compiled"):
        stacked([made])
    first = layers.Dense(8)
    made = keras.Sequential([layers.Input((8,)), first, Sorts(name="sorts"), layers.Dense(1)])
    made.compile("sgd", "mse")
    with pytest.raises(CannotStack) as raised:
        stacked([made])
    assert raised.value.layer == "sorts"
    for words, refused in ((True, True), (False, False)):
        made = keras.Sequential([layers.Input((6,)), Looks(words), layers.Flatten()])
        made.add(layers.Dense(1))
        made.compile("adam", "mse")
        if refused:
            with pytest.raises(CannotStack, match="looks: Looks has the Embedding table within it"):
                stacked([made], batches(numbers(ROWS, 6)))
        else:
            stacked([made], batches(numbers(ROWS, 6)))
    own = Own(name="own")
    own.compile("sgd", "mse")
    with pytest.raises(CannotStack, match="own: Own is a class of the program's"):
        stacked([own])
