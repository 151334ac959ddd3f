"""Models that are trained as one become what each would have become alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from sublet.inside.stacks.architecture import architecture
from sublet.inside.stacks.batches import Batches
from sublet.inside.stacks.difference import difference, output_difference
from sublet.inside.stacks.group import Group, serial, stacks
from sublet.inside.stacks.probe import chosen
from sublet.inside.stacks.stack import Stack
from sublet.inside.stacks.trainer import CannotStack
from sublet.inside.training.refused import Refused

pytestmark = pytest.mark.slow

ROWS, BATCH, SEED, EPOCHS = 44, 16, 5, 2


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


def batches(x: Any = X, y: Any = Y, **options: Any) -> Batches:
    return Batches(x, y, batch_size=BATCH, seed=SEED, **options)


def fitted(model: Any, x: Any = X, y: Any = Y, epochs: int = EPOCHS, **options: Any) -> Any:
    tf.random.set_seed(SEED)
    return model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0, **options).history


def seeds(model: Any) -> list[list[int]]:
    found = [one for one in model.variables if one.path.endswith("seed_generator_state")]
    return [np.asarray(one.value).tolist() for one in found]


def test_trials_equal_what_fit_makes_of_each() -> None:
    """With their own learning rates, dropout masks and regularisation."""
    trials = [mlp(**trial) for trial in TRIALS]
    stack = Stack(trials, batches())
    data = batches()
    logs = [stack.train_epoch(data) for _ in range(EPOCHS)][-1]
    shown = stack.evaluate(batches(shuffle=False))
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


@pytest.mark.parametrize("layers_of", [convolutional, recurrent, attentive])
def test_all_kinds_of_layers_equal_what_fit_makes_of_them(layers_of: Any) -> None:
    """The key bias of attention has a gradient of rounding alone, which Adam makes as large as any:
    outputs are compared. So would be a bias before BatchNormalization; it has none here."""

    def build(seed: int) -> Any:
        keras.utils.set_random_seed(seed)
        made, _ = layers_of()
        model = keras.Sequential(made) if isinstance(made, list) else made
        model.compile(keras.optimizers.Adam(0.003 * seed, clipnorm=1.0), "mse")
        return model

    x = layers_of()[1]
    trials = [build(1), build(2)]
    stack = Stack(trials, batches(x))
    stack.train_epoch(batches(x))
    stack.write_back()
    for trial, seed in zip(trials, (1, 2), strict=True):
        alone = build(seed)
        fitted(alone, x, epochs=1)
        assert output_difference(trial, alone, x) < 1e-4


OPTIMIZERS: tuple[Callable[[float], Any], ...] = (
    lambda rate: keras.optimizers.SGD(rate, momentum=0.9 - rate, nesterov=True),
    lambda rate: keras.optimizers.AdamW(rate, weight_decay=rate, global_clipnorm=10 * rate),
    lambda rate: keras.optimizers.RMSprop(rate, momentum=rate, clipvalue=rate),
    lambda rate: keras.optimizers.Lion(rate, use_ema=True, ema_overwrite_frequency=2),
    lambda rate: keras.optimizers.Adam(
        keras.optimizers.schedules.CosineDecay(rate, 4), gradient_accumulation_steps=2
    ),
    lambda rate: keras.optimizers.Adafactor(rate),
)


@pytest.mark.parametrize("place", range(len(OPTIMIZERS)))
def test_optimizers_take_the_steps_that_they_take_alone(place: int) -> None:
    def build(seed: int) -> Any:
        model = mlp(seed)
        model.compile(OPTIMIZERS[place](0.01 * seed), "mse")
        return model

    trials = [build(1), build(2)]
    stack = Stack(trials, batches())
    stack.train_epoch(batches())
    stack.write_back()
    for trial, seed in zip(trials, (1, 2), strict=True):
        alone = build(seed)
        trainer = serial([alone])
        trainer.train_epoch(batches())
        assert difference(trial, alone) < 1e-5


def test_a_trial_that_diverges_harms_no_other() -> None:
    broken = dict(TRIALS[0], rate=1e30)
    trials = [mlp(**broken), mlp(**TRIALS[1])]
    stack = Stack(trials, batches())
    data = batches()
    logs = [stack.train_epoch(data) for _ in range(EPOCHS)][-1]
    stack.write_back()
    alone = mlp(**TRIALS[1])
    fitted(alone)
    assert np.isnan(logs[0]["loss"])
    assert difference(trials[1], alone) < 1e-5


def test_those_that_leave_are_written_back_and_the_others_go_on() -> None:
    trials = [mlp(**trial) for trial in TRIALS]
    trainer = stacks(trials, batches(), most=2)
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
    trainer = stacks(trials, batches())
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
    trainer = stacks(trials, batches())
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
    trainer.train_epoch(
        batches(shuffle=False, x=np.tile(X[:BATCH], (3, 1)), y=np.tile(Y[:BATCH], (3, 1)))
    )
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
    trials = [mlp(**trial) for trial in TRIALS]
    stack = Stack(trials, Batches(X, Y, batch_size=BATCH, seeds=[7, SEED, 9]))
    stack.train_epoch(Batches(X, Y, batch_size=BATCH, seeds=[7, SEED, 9]))
    stack.write_back()
    alone = mlp(**TRIALS[1])
    fitted(alone, epochs=1)
    assert difference(trials[1], alone) < 1e-5
    other = mlp(**TRIALS[0])
    fitted(other, epochs=1)
    assert difference(trials[0], other) > 1e-4


def test_a_tf_data_set_with_weights_feeds_all() -> None:
    weights = np.linspace(0, 2, ROWS, dtype="float32")
    data = tf.data.Dataset.from_tensor_slices((X, Y, weights)).batch(BATCH)
    trials = [mlp(**trial) for trial in TRIALS[:2]]
    stack = Stack(trials, Batches(data))
    logs = stack.train_epoch(Batches(data))
    alone = mlp(**TRIALS[0])
    history = alone.fit(data, shuffle=False, verbose=0).history
    stack.write_back()
    assert difference(trials[0], alone) < 1e-5
    assert logs[0]["loss"] == pytest.approx(history["loss"][-1], rel=1e-4)


def test_a_probe_changes_no_model_and_gives_a_trainer() -> None:
    trials = [mlp(**trial) for trial in TRIALS]
    before = [np.copy(one) for one in trials[0].get_weights()]
    trainer, evidence = chosen(trials, batches(), epochs=3)
    assert all((a == b).all() for a, b in zip(before, trials[0].get_weights(), strict=True))
    assert isinstance(trainer, Group)
    assert evidence.choice in ("fused", "serial")
    assert evidence.fused is not None
    trainer.train_epoch(batches())
    trainer.write_back()
    for place in (0, 2):  # The first is the one that was timed by itself.
        alone = mlp(**TRIALS[place])
        fitted(alone, epochs=1)
        assert difference(trials[place], alone) < 1e-5


def test_architectures_differ_by_shapes_and_kinds_and_not_by_numbers() -> None:
    assert architecture(mlp(**TRIALS[0])) == architecture(mlp(**TRIALS[1]))
    other = mlp()
    other.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    assert architecture(other) != architecture(mlp())
    with pytest.raises(CannotStack, match="optimizer"):
        Stack([mlp(), other], batches())


class Sorts(layers.Layer):  # type: ignore[misc]
    """Does what TensorFlow cannot vectorise."""

    def call(self, x: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(np.sort, [x], tf.float32), x.shape)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


class Own(keras.Model):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        return x


def test_what_cannot_be_stacked_is_named_with_the_reason() -> None:
    made = keras.Sequential([layers.Input((8,)), Sorts(name="sorts"), layers.Dense(1)])
    with pytest.raises(CannotStack, match="not compiled"):
        Stack([made], batches())
    first = layers.Dense(8)
    made = keras.Sequential([layers.Input((8,)), first, Sorts(name="sorts"), layers.Dense(1)])
    made.compile("sgd", "mse")
    with pytest.raises(CannotStack) as raised:
        Stack([made], batches())
    assert raised.value.layer == "sorts"
    own = Own(name="own")
    own.compile("sgd", "mse")
    with pytest.raises(CannotStack, match="own: Own is a class of the program's"):
        Stack([own], batches())


def test_a_generator_and_unequal_lengths_are_refused() -> None:
    with pytest.raises(Refused, match="generator"):
        Batches(iter([(X, Y)]))
    with pytest.raises(Refused, match="cardinality"):
        Batches(X, Y[:-1])
