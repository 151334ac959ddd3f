"""An Optuna study whose trials each have a clean worker with a lease, two of them at a time.

Optuna's threads only wait: this process never loads TensorFlow. A trial that runs out of memory or
crashes is recorded as failed, and the study goes on.
"""

import optuna

import sublet


@sublet.task(memory="256MiB", max_workers=2)
def train(rate: float, units: int) -> float:
    import numpy as np
    from tensorflow import keras

    keras.utils.set_random_seed(1)
    x = np.linspace(-1, 1, 256, dtype="float32")[:, None]
    model = keras.Sequential([keras.layers.Dense(units, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(rate), "mse")
    history = model.fit(x, np.sin(3 * x), batch_size=256, epochs=20, verbose=0)
    return float(history.history["loss"][-1])


def objective(trial: optuna.Trial) -> float:
    return train(
        rate=trial.suggest_float("rate", 1e-4, 1e-1, log=True),
        units=trial.suggest_int("units", 4, 32),
    )


study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
study.optimize(objective, n_trials=4, n_jobs=2, catch=sublet.CallFailed)
print(f"{len(study.trials)} trials, best loss {study.best_value:.3f} with {study.best_params}")
