"""Sweeps over small Keras models, ours and those of others, for bench/sweeps.py.

sweeps.py mlp METHOD COUNT     of 32-64-64-1, by any method; its figure is the program's own
sweeps.py cnn METHOD COUNT     the same of small CNNs
sweeps.py shape NAME WAY       eight of a shape; prints its seconds and the way as JSON
sweeps.py halving              64 trials, all of them and by halving
sweeps.py cost COUNT...        seconds and trials of whole sweeps
sweeps.py equal KIND...        how far trials are from themselves alone
"""

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

_EPOCHS = 5


def _data(kind: str, rows: int) -> tuple[Any, Any]:
    import numpy as np

    draw = np.random.default_rng(0)
    x = draw.normal(size=(rows, *_SHAPES[kind])).astype("float32")
    y = np.tanh(x.reshape(rows, -1)[:, :1]) + 0.1 * draw.normal(size=(rows, 1))
    return x, y.astype("float32")


def _layers(kind: str) -> list[Any]:
    from keras import layers

    return {
        "mlp": lambda: [layers.Dense(64, "relu"), layers.Dense(64, "relu")],
        "cnn": lambda: [
            layers.Conv2D(8, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Flatten(),
        ],
        "wide cnn": lambda: [
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.Flatten(),
        ],
        "lstm": lambda: [layers.LSTM(16)],
        "layernorm": lambda: [layers.Dense(32), layers.LayerNormalization(), layers.ReLU()],
        "batchnorm": lambda: [layers.Dense(32), layers.BatchNormalization(), layers.ReLU()],
    }[kind]()


_SHAPES: dict[str, tuple[int, ...]] = {
    "mlp": (32,),
    "cnn": (16, 16, 1),
    "wide cnn": (28, 28, 1),
    "lstm": (12, 8),
    "layernorm": (16,),
    "batchnorm": (16,),
    "attention": (8, 6),
}


def _model(kind: str, optimizer: Any, inside: list[Any] | None = None) -> Any:
    import keras
    from keras import layers

    if kind == "attention":
        given = keras.Input(_SHAPES[kind])
        x = layers.LayerNormalization()(given + layers.MultiHeadAttention(2, 3)(given, given))
        model = keras.Model(given, layers.Dense(1)(layers.Flatten()(x)))
    else:
        inside = _layers(kind) if inside is None else inside
        model = keras.Sequential([layers.Input(_SHAPES[kind]), *inside, layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


# One method a run, as a user would write it.


class Training:
    """What all methods have to do: models of a kind, each with a rate of its own."""

    def __init__(self, kind: str, count: int) -> None:
        self.kind = kind
        self.rates = [0.0005 * (1 + number) for number in range(count)]
        self.rows, self.size = {"mlp": (4096, 64), "cnn": (1024, 32)}[kind]

    def build(self, rate: float) -> Any:
        import keras

        return _model(self.kind, keras.optimizers.Adam(rate))

    def fit(self, rate: float) -> float:
        import keras

        keras.utils.set_random_seed(0)
        x, y = _data(self.kind, self.rows)
        history = self.build(rate).fit(x, y, batch_size=self.size, epochs=_EPOCHS, verbose=0)
        return float(history.history["loss"][-1])

    def by_sublet(self) -> None:
        import sublet

        data = _data(self.kind, self.rows)
        found = sublet.sweep(
            self.build, {"rate": self.rates}, data, epochs=_EPOCHS, batch_size=self.size
        )
        _ = found.best.model

    def by_fit(self) -> None:
        min(self.fit(rate) for rate in self.rates)

    def by_pool(self) -> None:
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            min(pool.map(self.fit, self.rates, chunksize=1))

    def by_ray(self) -> None:
        import ray

        @ray.remote  # type: ignore[untyped-decorator,unused-ignore]
        def trial(rate: float) -> float:
            return self.fit(rate)

        ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
        min(ray.get([trial.remote(rate) for rate in self.rates]))

    def by_tune(self) -> None:
        import ray
        from ray import tune

        ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)

        def trial(config: Any) -> None:
            tune.report({"loss": self.fit(config["rate"])})

        with tempfile.TemporaryDirectory() as place:
            tuner = tune.Tuner(
                trial,
                param_space={"rate": tune.grid_search(self.rates)},
                tune_config=tune.TuneConfig(reuse_actors=True),
                run_config=tune.RunConfig(storage_path=place, verbose=0),
            )
            found = tuner.fit()
        if found.num_errors:
            raise RuntimeError(found.errors)

    def by_keras_tuner(self) -> None:
        import keras_tuner

        x, y = _data(self.kind, self.rows)
        with tempfile.TemporaryDirectory() as place:
            tuner = keras_tuner.GridSearch(
                lambda hp: self.build(hp.Choice("rate", self.rates)),
                keras_tuner.Objective("loss", "min"),
                directory=place,
            )
            tuner.search(x, y, batch_size=self.size, epochs=_EPOCHS, verbose=0)
        if len(tuner.oracle.trials) < len(self.rates):
            raise RuntimeError("not all were tried")

    def by_optuna(self) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(sampler=optuna.samplers.GridSampler({"rate": self.rates}))
        study.optimize(
            lambda trial: self.fit(trial.suggest_categorical("rate", self.rates)),
            n_trials=len(self.rates),
        )


def mlp(method: str, count: str) -> None:
    getattr(Training("mlp", int(count)), f"by_{method}")()


def cnn(method: str, count: str) -> None:
    getattr(Training("cnn", int(count)), f"by_{method}")()


# What is timed here, with TensorFlow running.

GRID: dict[str, tuple[str, int, int, int, int]] = {
    "MLP 16": ("mlp", 16, 4096, 16, 40),
    "MLP 64": ("mlp", 64, 4096, 64, 100),
    "MLP 256": ("mlp", 256, 4096, 64, 16),
    "MLP 512": ("mlp", 512, 4096, 128, 10),
    "MLP 1024": ("mlp", 1024, 2048, 256, 8),
    "MLP 2048": ("mlp", 2048, 2048, 256, 2),
    "CNN 8": ("cnn", 0, 1024, 32, 30),
    "CNN 32": ("wide cnn", 0, 512, 32, 5),
    "LSTM 16": ("lstm", 0, 1024, 32, 30),
}
"""Kind, width, rows, batch and epochs: so many that the best way takes ten seconds, about."""


def shape(name: str, way: Any) -> Any:
    import keras
    import tensorflow as tf
    from keras import layers

    import sublet

    kind, width, rows, size, epochs = GRID[name]
    data = _data(kind, rows)
    tf.constant(1.0) + 1.0  # The runtime has started.

    def build(rate: float) -> Any:
        inside = [layers.Dense(width, "relu") for _ in range(2)] if width else None
        return _model(kind, keras.optimizers.Adam(rate), inside)

    rates = [0.0005 * (1 + number) for number in range(8)]
    begin = time.perf_counter()
    found = sublet.sweep(
        build, {"rate": rates}, data, epochs=epochs, batch_size=size, way=way, progress=False
    )
    return time.perf_counter() - begin, found.ways[0]


def halving() -> Any:
    """Both find a best trial; on data of their own, as the last epoch's loss may be a draw."""
    import keras

    import sublet
    from sublet.sweeps import halving as by_halving
    from sublet.sweeps import loguniform

    data, validation = _data("mlp", 4096), _data("mlp", 1024)

    def build(rate: float) -> Any:
        return _model("mlp", keras.optimizers.SGD(rate))

    def swept(search: Any, trials: int = 64, epochs: int = 27) -> tuple[float, Any]:
        begin = time.perf_counter()
        found = sublet.sweep(
            build,
            {"rate": loguniform(1e-5, 1e-1)},
            data,
            validation_data=validation,
            epochs=epochs,
            batch_size=64,
            trials=trials,
            search=search,
            progress=False,
        )
        return time.perf_counter() - begin, found.best.params

    swept("random", 4, 1)
    return {"whole": swept("random"), "halving": swept(by_halving(eta=3))}


def cost(*counts: str) -> Any:
    import keras

    import sublet

    data = _data("mlp", 4096)

    def build(rate: float) -> Any:
        return _model("mlp", keras.optimizers.Adam(rate))

    def swept(count: int) -> float:
        begin = time.perf_counter()
        sublet.sweep(
            build,
            {"rate": [0.0001 * (1 + number) for number in range(count)]},
            data,
            epochs=_EPOCHS,
            batch_size=64,
            progress=False,
        )
        return time.perf_counter() - begin

    swept(2)
    return {count: swept(int(count)) for count in counts}


def equal(*kinds: str) -> Any:
    import keras

    import sublet

    makers = {"SGD": keras.optimizers.SGD, "Adam": keras.optimizers.Adam}
    found = {}
    for kind in kinds:
        for name, make in makers.items():

            def build(rate: float, kind: str = kind, make: Callable[..., Any] = make) -> Any:
                return _model(kind, make(rate))

            result = sublet.sweep(
                build,
                {"rate": [0.001, 0.003, 0.005], "seed": [1]},
                _data(kind, 320),
                epochs=5,
                way="fused",
                verify=True,
                progress=False,
            )
            far = result.differences.values()
            found[f"{kind} {name}"] = (
                max(one.weights for one in far),
                max(one.outputs for one in far),
            )
    return found


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    printed = globals()[what](*words)
    if printed is not None:
        print(json.dumps(printed))
