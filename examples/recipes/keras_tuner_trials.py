"""A Keras Tuner search whose trials each have a clean worker with a lease, two of them at a time.

The space is declared here and the model is built there, so TensorFlow's runtime never starts in
this process. Keras Tuner asks for one trial at a time, so two tuners share one oracle.
"""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras_tuner

import sublet


def train(values: dict[str, Any]) -> dict[str, float]:
    import numpy as np
    from tensorflow import keras

    keras.utils.set_random_seed(1)
    x = np.linspace(-1, 1, 256, dtype="float32")[:, None]
    layers = [keras.layers.Dense(values["units"], "tanh"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(values["rate"]), "mse")
    history = model.fit(x, np.sin(3 * x), batch_size=256, epochs=20, verbose=0)
    return {"loss": float(history.history["loss"][-1])}


class LeasedTuner(keras_tuner.Tuner):  # type: ignore[misc]  # It has no types.
    """Runs each trial in a worker of the pool."""

    def __init__(self, number: int, pool: sublet.Pool, **options: Any) -> None:
        super().__init__(**options)
        self.tuner_id = f"tuner{number}"
        self.pool = pool

    def run_trial(self, trial: Any, *args: Any, **kwargs: Any) -> dict[str, float]:
        return self.pool.submit(train, trial.hyperparameters.values).result()


space = keras_tuner.HyperParameters()
space.Int("units", 4, 32)
space.Float("rate", 1e-4, 1e-1, sampling="log")
oracle = keras_tuner.oracles.RandomSearchOracle(
    objective=keras_tuner.Objective("loss", "min"), max_trials=4, hyperparameters=space, seed=1
)
oracle.verbose = 0

with tempfile.TemporaryDirectory() as directory, sublet.Pool(2, memory="256MiB") as pool:
    tuners = [LeasedTuner(n, pool, oracle=oracle, directory=directory) for n in range(2)]
    with ThreadPoolExecutor(len(tuners)) as threads:
        list(threads.map(LeasedTuner.search, tuners))

best = oracle.get_best_trials(1)[0]
print(f"{len(oracle.trials)} trials, best loss {best.score:.3f} with {best.hyperparameters.values}")
