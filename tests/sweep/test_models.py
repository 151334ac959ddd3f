"""`sublet.sweep` over small Keras models, in this process."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import sublet
from sublet.errors import BadRequest
from sublet.sweeps import SweepResult, halving, pbt
from sublet.sweeps.metrics import in_file

pytestmark = pytest.mark.slow

_ROWS = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
DATA = (_ROWS, _ROWS[:, :1] - 2 * _ROWS[:, 1:2])
VALIDATION = (_ROWS[:32], DATA[1][:32])


def build(rate: float, units: int = 4) -> Any:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate), "mse", metrics=["mae"])
    return model


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SUBLET_HOME", str(tmp_path / "home"))


def swept(space: Any = None, build: Any = build, **options: Any) -> SweepResult:
    settings: dict[str, Any] = {"data": DATA, "epochs": 2, "progress": False} | options
    return sublet.sweep(build, {"rate": [0.01, 0.05]} if space is None else space, **settings)


def curves(result: SweepResult) -> list[Any]:
    return [trial.history for trial in result.trials]


def test_every_trial_ends_as_if_it_were_trained_alone() -> None:
    """Fused and one after the other; the best model has the weights of its value."""
    space = {"rate": [0.01, 0.05, 1e30], "seed": range(2)}
    fused = swept(space, validation_data=VALIDATION, way="fused", verify=True)
    alone = swept(space, validation_data=VALIDATION, way="serial")
    for one, other in zip(curves(fused), curves(alone), strict=True):
        for name, values in one.items():
            np.testing.assert_allclose(values, other[name], rtol=1e-4)
    best = fused.best
    assert (best.params, best.state) == (alone.best.params, "done")
    loss = best.model.evaluate(*VALIDATION, verbose=0)[0]
    assert loss == pytest.approx(best.value, rel=1e-4)
    # Those that diverged harm no other, and are last.
    assert [math.isnan(trial.value or 0) for trial in fused.ranked] == [False] * 4 + [True] * 2
    assert fused.differences.keys() == {0, 1, 2, 3}
    assert max(one.weights for one in fused.differences.values()) < 1e-4
    # The same seed begins with the same weights.
    assert fused.trials[0].history["loss"][0] != fused.trials[1].history["loss"][0]


def test_each_trial_has_rows_in_an_order_of_its_own_when_asked() -> None:
    """By its seed, so the same in a stack as alone."""
    space = {"rate": [0.05], "seed": [3, 4]}
    common, each, alone = (
        swept(space, way=way, shuffle=shuffle)
        for way, shuffle in (("fused", True), ("fused", "each"), ("serial", "each"))
    )
    for one, other in zip(curves(each), curves(alone), strict=True):
        np.testing.assert_allclose(one["loss"], other["loss"], rtol=1e-4)
    assert not np.allclose(curves(common)[0]["loss"], curves(each)[0]["loss"], rtol=1e-4)


def test_losers_leave_a_stack_early_and_the_best_trial_is_the_same() -> None:
    space = {"rate": [0.0001, 0.001, 0.02, 0.05, 0.0002, 0.0005]}
    whole = swept(space, epochs=4, way="fused")
    short = swept(space, epochs=4, way="fused", search=halving(eta=2))
    assert short.best.params == whole.best.params
    assert short.best.value == pytest.approx(whole.best.value, rel=1e-4)
    assert [len(trial.history["loss"]) for trial in short.ranked] == [4, 2, 2, 1, 1, 1]


def test_a_population_copies_weights_in_a_stack() -> None:
    """The first trial learns nothing by itself: it ends well only with the weights of another."""
    rates = [1e-9, 0.03, 0.04, 0.05]
    result = swept({"rate": rates}, trials=4, epochs=6, way="fused", search=pbt(2), seed=1)
    losses = result.trials[0].history["loss"]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert losses[2] < losses[0] / 2
    assert result.trials[0].params["rate"] in rates[1:]
    assert all(trial.state == "done" for trial in result.trials)


def test_different_architectures_are_grouped_and_the_ways_are_told() -> None:
    result = swept({"rate": [0.01, 0.02], "units": [2, 4]}, way="fused")
    assert len(result.ways) == 2
    assert all("2 trials fused, it was asked for" in way for way in result.ways)


def test_early_stopping_ends_single_trials_and_their_best_weights_count() -> None:
    result = swept(
        {"rate": [0.01, 0.6]},
        epochs=6,
        way="fused",
        validation_data=VALIDATION,
        callbacks=[keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True)],
    )
    steady, wild = result.trials
    assert len(steady.history["loss"]) == 6
    assert len(wild.history["loss"]) < 6
    assert wild.value == min(wild.history["val_loss"])
    assert wild.model.evaluate(*VALIDATION, verbose=0)[0] == pytest.approx(wild.value, rel=1e-3)


class Freeze(keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the learning rate to 0 before the second epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.model.optimizer.learning_rate = 0.0


def test_callbacks_that_change_the_learning_rate_do_so_for_their_trial() -> None:
    result = swept(
        {"rate": [0.05, 0.04]},
        epochs=3,
        way="fused",
        callbacks=lambda trial: [Freeze()] if trial.number == 1 else [],
    )
    moving, still = (trial.history["loss"] for trial in result.trials)
    assert moving[2] < moving[1] / 2
    assert still[2] == pytest.approx(still[1], rel=1e-3)


@pytest.mark.parametrize("search", ["grid", halving(eta=2), pbt(1)])
def test_a_sweep_that_was_killed_goes_on_and_ends_the_same(tmp_path: Path, search: Any) -> None:
    space = {"rate": [0.001, 0.01, 0.03, 0.05]}
    options: dict[str, Any] = {"epochs": 4, "way": "serial", "search": search}
    options["trials"] = 4 if search == pbt(1) else None
    whole = swept(space, **options)
    built: list[float] = []

    def crashing(rate: float) -> Any:
        built.append(rate)
        return build(rate)

    def callbacks(trial: Any) -> list[Any]:
        def ended(epoch: int, logs: Any) -> None:
            if crash and trial.number == 3 and epoch == 1:
                raise KeyboardInterrupt

        return [keras.callbacks.LambdaCallback(on_epoch_end=ended)]

    kept = {**options, "build": crashing, "directory": tmp_path / "kept", "callbacks": callbacks}
    crash = True
    with pytest.raises(KeyboardInterrupt):
        swept(space, **kept)
    crash, before = False, len(built)
    again = swept(space, **kept)
    assert [trial.params for trial in again.trials] == [trial.params for trial in whole.trials]
    for one, other in zip(curves(again), curves(whole), strict=True):
        np.testing.assert_allclose(one["loss"], other["loss"], rtol=1e-5)
    assert again.best.model.evaluate(*DATA, verbose=0)[0] >= 0
    # Once more: nothing is left to train, and the best model is still there.
    third = swept(space, **kept)
    assert third.best.params == whole.best.params
    np.testing.assert_allclose(
        third.best.model.get_weights()[0], again.best.model.get_weights()[0], rtol=1e-6
    )
    assert len(built) > before


def test_a_hypermodel_of_keras_tuner_builds_models() -> None:
    kt = pytest.importorskip("keras_tuner")

    class Tuned(kt.HyperModel):  # type: ignore[misc,name-defined]
        def build(self, hp: Any) -> Any:
            return build(hp.Float("rate", 1e-4, 1e-1), hp.Int("units", 1, 8))

    for builder in (Tuned(), lambda hp: Tuned().build(hp)):
        result = swept({"rate": [0.01, 0.05], "units": [3]}, builder, way="serial", epochs=1)
        assert result.best.model.layers[0].units == 3


def test_a_dataset_and_weights_of_classes_train_as_fit_does() -> None:
    labels = (DATA[1][:, 0] > 0).astype("int32")
    weights = {0: 1.0, 1: 3.0}

    def classifier(rate: float) -> Any:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "softmax")])
        model.compile(keras.optimizers.SGD(rate), "sparse_categorical_crossentropy")
        return model

    keras.utils.set_random_seed(0)
    model = classifier(0.1)
    fitted = model.fit(
        _ROWS, labels, batch_size=32, epochs=2, shuffle=False, class_weight=weights, verbose=0
    )
    dataset = tf.data.Dataset.from_tensor_slices((_ROWS, labels)).batch(32)
    for data in (dataset, (_ROWS, labels)):
        result = swept({"rate": [0.1]}, classifier, data=data, class_weight=weights, shuffle=False)
        np.testing.assert_allclose(result.best.history["loss"], fitted.history["loss"], rtol=1e-4)


def test_tables_files_and_pictures_have_every_trial(tmp_path: Path) -> None:
    result = swept({"rate": [0.01, 1e30]}, way="serial", tensorboard=tmp_path / "board")
    title, *rows = str(result.table()).splitlines()
    assert title.split()[:3] == ["trial", "loss", "rate"]
    assert [row.split()[0] for row in rows] == ["0", "1"]
    assert result.to_csv(tmp_path / "all.csv").count("\n") == 3
    assert result.plot(tmp_path / "all.svg").svg.count("<polyline") >= 2
    assert "<table>" in result._repr_html_()
    written = in_file(tmp_path / "board/trial-000", "loss")
    values = [logs["loss"] for logs in written]
    assert values == pytest.approx(result.trials[0].history["loss"])


def _generator() -> Iterator[Any]:
    yield DATA


class Subclassed(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)


def test_a_model_of_the_programs_own_class_is_trained_by_fit_and_that_is_said() -> None:
    def subclassed(rate: float) -> Any:
        model = Subclassed()
        model.compile(keras.optimizers.SGD(rate), "mse")
        return model

    data = tf.data.Dataset.from_tensor_slices(DATA).batch(32)
    result = swept(build=subclassed, data=data)
    assert "serial" in result.ways[0]
    assert result.best.history["loss"][1] < result.best.history["loss"][0]
    with pytest.raises(BadRequest, match="cannot be trained as one"):
        swept(build=subclassed, way="fused")


def test_a_builder_that_fails_for_some_parameters_fails_those_trials_alone() -> None:
    def choosy(rate: float) -> Any:
        if rate > 1:
            raise ValueError("too fast")
        return build(rate)

    result = swept({"rate": [0.01, 2.0]}, choosy, way="serial")
    assert [trial.state for trial in result.trials] == ["done", "failed"]
    assert result.trials[1].error == "ValueError: too fast"
    with pytest.raises(BadRequest, match="weights of trial 1 were not kept"):
        _ = result.trials[1].model


def _uncompiled(rate: float) -> Any:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])


def _sharing() -> Callable[[float], Any]:
    layer = keras.layers.Dense(1)

    def build(rate: float) -> Any:
        model = keras.Sequential([keras.Input((4,)), layer])
        model.compile(keras.optimizers.SGD(rate), "mse")
        return model

    return build


def _changing() -> Callable[[float], Any]:
    sizes = iter(range(1, 99))
    return lambda rate: build(rate, next(sizes))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"build": _uncompiled}, "not compiled"),
        ({"build": lambda rate: "model"}, "no Keras 3 model"),
        ({"build": _changing()}, "different models for the same parameters"),
        ({"build": _sharing()}, "the same weights twice: .*dense"),
        ({"build": 7}, "cannot build models"),
        ({"space": {}}, "empty"),
        ({"data": (_ROWS[:, :3], DATA[1])}, "cannot be trained with this data"),
        ({"shuffle": "all"}, "shuffle='all' is unknown"),
        (
            {"data": tf.data.Dataset.from_tensors(DATA), "shuffle": "each"},
            "one order for all trials",
        ),
        ({"space": {"speed": [1]}}, "cannot be called with speed"),
        ({"space": {"rate": []}}, "no values"),
        ({"metric": "accuracy"}, "There is no metric 'accuracy'; there are: loss, mae"),
        ({"metric": "val_loss"}, "there is none"),
        ({"data": (_ROWS, DATA[1][:50])}, "unequal length: x has 96 rows, y has 50 rows"),
        ({"data": _generator()}, "is a generator"),
        ({"data": tf.data.Dataset.from_tensors(DATA).repeat()}, "has no end"),
        ({"data": _ROWS}, "not \\(x, y\\)"),
        ({"way": "fast"}, "unknown"),
        ({"epochs": 0}, "at least one"),
        ({"callbacks": [keras.callbacks.TensorBoard("x")]}, "called for each batch"),
    ],
)
def test_what_makes_no_sense_is_refused_and_leaves_nothing(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadRequest, match=said):
        swept(directory=tmp_path / "kept", **{"way": "serial", **options})
    assert not (tmp_path / "kept").exists()
