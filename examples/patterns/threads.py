"""Models trained in threads of one process: `python threads.py`."""

import sublet


def train(seed: int) -> float:
    """Runs in a thread of its own, with seeds, names and a Keras state of its own."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(seed)
    rows = np.random.default_rng(seed).normal(size=(256, 8)).astype("float32")
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    history = model.fit(rows, rows.sum(axis=1), epochs=2, verbose=0)
    return float(history.history["loss"][-1])


if __name__ == "__main__":
    with sublet.Pool(4, isolation="thread", memory="256MiB") as pool:
        losses = list(pool.map(train, [1, 2, 3, 1]))
    print(f"{len(losses)} models; the same seed gives the same loss: {losses[0] == losses[3]}")
