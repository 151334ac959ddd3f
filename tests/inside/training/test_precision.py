"""Mixed precision for models that were built without it."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import sublet
from sublet.errors import BadRequest
from sublet.inside.training import micro_batches

pytestmark = pytest.mark.slow

X = np.random.default_rng(1).normal(size=(44, 8)).astype("float32")
Y = np.random.default_rng(2).normal(size=(44, 1)).astype("float32")


def model() -> Any:
    keras.utils.set_random_seed(1)
    made = keras.Sequential([layers.Input((8,)), layers.Dense(16, "relu"), layers.Dense(1)])
    made.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return made


def fit(made: Any, precision: str, x: Any = X, **options: Any) -> Any:
    settings = {"batch_size": 16, "shuffle": False, "verbose": 0, **options}
    return sublet.fit(made, x, Y, precision=precision, **settings)


class Looks(keras.callbacks.Callback):  # type: ignore[misc]
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.types = [layer.compute_dtype for layer in self.model.layers]
        self.optimizer = self.model.optimizer


@pytest.mark.parametrize("name", ["mixed_float16", "mixed_bfloat16"])
def test_layers_compute_in_it_and_are_then_as_before(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts, too: the weights are those of whole batches, to the rounding of the type."""
    whole, looks = model(), Looks()
    optimizer = whole.optimizer
    fit(whole, name, epochs=3, callbacks=[looks])
    assert looks.types == [name.removeprefix("mixed_"), "float32"]
    assert (looks.optimizer is optimizer) == (name == "mixed_bfloat16")
    assert [layer.dtype_policy.name for layer in whole.layers] == ["float32", "float32"]
    assert whole.optimizer is optimizer
    assert whole.predict(X, verbose=0).dtype == np.float32
    plain = model()
    plain.fit(X, Y, batch_size=16, shuffle=False, verbose=0, epochs=3)
    parts = model()
    monkeypatch.setattr(micro_batches.MicroBatches, "most", lambda *_: 5)
    fit(parts, name, epochs=3)
    for one, other, exact in zip(*(m.get_weights() for m in (whole, parts, plain)), strict=True):
        np.testing.assert_allclose(one, other, atol=0.02)
        np.testing.assert_allclose(one, exact, atol=0.05)
        assert (one != exact).any()


@pytest.mark.parametrize("most", [16, 5])
def test_a_batch_with_an_infinite_gradient_is_left_out_as_a_whole(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, however it is split, and the scale is halved once; the next batch counts."""
    monkeypatch.setattr(micro_batches.MicroBatches, "most", lambda *_: most)
    large = X.copy()
    large[3] = 3e4  # In the first batch; squared it is more than float16 has.
    made, scales = model(), []
    weights: list[Any] = [made.get_weights()]

    def look(batch: int, logs: Any) -> None:
        scales.append(float(made.optimizer.dynamic_scale))
        weights.append(made.get_weights())

    looks = keras.callbacks.LambdaCallback(on_train_batch_end=look)
    fit(made, "mixed_float16", x=large, callbacks=[looks])
    assert scales == [2.0**14] * 3
    before, first, second, _ = weights
    assert all(np.array_equal(one, other) for one, other in zip(before, first, strict=True))
    assert not any(np.array_equal(one, other) for one, other in zip(first, second, strict=True))


def test_what_cannot_be_mixed_is_refused_by_name() -> None:
    made = model()
    before = made.get_weights()
    with pytest.raises(BadRequest, match=r"no precision 'half'.*'mixed_bfloat16'"):
        fit(made, "half")
    exact = keras.Sequential(
        [layers.Input((8,)), layers.Dense(4, dtype="float64"), layers.Dense(1)]
    )
    exact.compile("sgd", "mse")
    with pytest.raises(BadRequest, match=r"'dense.*' keeps its weights in float64"):
        fit(exact, "mixed_float16")

    class Own(keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            return super().train_step(data)

    own = Own([layers.Input((8,)), layers.Dense(1)])
    own.compile("sgd", "mse")
    with pytest.raises(BadRequest, match=r"Own.train_step is the program's own"):
        fit(own, "mixed_float16")
    with pytest.raises(BadRequest, match=r"no strategy 'tpu'.*'mirrored', 'multiworker' or"):
        sublet.fit(made, X, Y, strategy="tpu")
    with pytest.raises(BadRequest, match=r"sublet launch --chief 1 --workers 2 --ps 1"):
        sublet.fit(made, X, Y, strategy="parameter-server")
    with pytest.raises(BadRequest, match=r"sublet launch --workers 2"):
        sublet.fit(made, X, Y, strategy="multiworker")
    assert all(
        np.array_equal(one, other) for one, other in zip(before, made.get_weights(), strict=True)
    )
