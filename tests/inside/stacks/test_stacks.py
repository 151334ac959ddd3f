"""Models that are trained as one become what each would have become alone."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from sublet.inside.stacks.batches import Batches
from sublet.inside.stacks.difference import difference
from sublet.inside.stacks.stack import Stack

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
