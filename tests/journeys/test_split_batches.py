"""Batches that do not fit a lease, in programs that know nothing of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from support.sandbox import Sandbox

TRAIN = """
import sys
import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(1)
model = keras.Sequential([
    layers.Input((512, 16)),
    layers.Dense(64, "relu"),
    layers.Dense(64, "relu"),
    layers.GlobalAveragePooling1D(),
    layers.Dense(1),
])
model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
rng = np.random.default_rng(0)
x, y = rng.normal(size=(300, 512, 16)).astype("f"), rng.normal(size=(300, 1)).astype("f")
history = model.fit(x, y, batch_size=256, epochs=2, shuffle=False, verbose=0).history
np.savez(sys.argv[1], *model.get_weights(), *history.values())
"""

ONE_ROW = """
import keras
import numpy as np
from keras import layers

model = keras.Sequential([
    layers.Input((65536, 4)), layers.Dense(128), layers.GlobalAveragePooling1D(), layers.Dense(1)
])
model.compile("sgd", "mse")
model.fit(np.ones((4, 65536, 4), "f"), np.ones((4, 1), "f"), batch_size=4, verbose=0)
"""

ARRAYS = """
import sys
import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(1)
numbers, words = layers.Input((1024,)), layers.Input((4,), dtype="int32")
flat = layers.Flatten()(layers.Embedding(9, 2)(words))
joined = layers.Concatenate()([layers.Dense(2)(numbers), flat])
heads = {name: layers.Dense(1, name=name)(joined) for name in ("one", "two")}
model = keras.Model([numbers, words], heads)
model.compile("sgd", {"one": "mse", "two": "mae"})
rng = np.random.default_rng(0)
rows = 10_000
x = [rng.normal(size=(rows, 1024)).astype("f"), rng.integers(0, 9, (rows, 4))]
y = {"one": rng.normal(size=(rows, 1)), "two": rng.normal(size=rows)}
options = {"batch_size": 64, "epochs": 2, "validation_split": 0.2, "verbose": 0}
history = model.fit(x, y, sample_weight=rng.random(rows), **options).history
found = model.predict(x, batch_size=100, verbose=0)
np.savez(sys.argv[1], *model.get_weights(), *history.values(), *found.values())
"""

SPLIT = "do not fit in 96 MiB; training in"


def run(sandbox: Sandbox, output: str, *words: str) -> tuple[dict[str, Any], str]:
    options = ("--report", "report.json", *words)
    answer = sandbox.sublet("run", *options, "learn.py", output, timeout=None)
    report = json.loads((sandbox.work / "report.json").read_text())
    assert report["code"] == 0, answer.stderr
    return report, answer.stderr


def assert_same(one: Path, other: Path) -> None:
    with np.load(one) as known, np.load(other) as found:
        assert known.files == found.files
        for name in known.files:
            np.testing.assert_allclose(known[name], found[name], atol=1e-5, rtol=1e-5)


def test_a_batch_that_does_not_fit_is_trained_in_parts_with_the_same_result(
    sandbox: Sandbox,
) -> None:
    """Warm and cold. The second run knows what the first has found; the third, for which that is
    wrong, does the step again that runs out of memory."""
    sandbox.write("learn.py", TRAIN)
    split = ("--memory", "96MiB", "--on-oom", "split")
    before = set((sandbox.home / "micro-batches").glob("*"))
    run(sandbox, "whole.npz", "--memory", "512MiB")
    report, said = run(sandbox, "parts.npz", *split)
    assert report["peak"] <= report["lease"]
    assert f"sublet: batches of 256 {SPLIT} " in said
    assert_same(sandbox.work / "whole.npz", sandbox.work / "parts.npz")
    (path,) = {*(sandbox.home / "micro-batches").iterdir()} - before
    known = json.loads(path.read_text())
    _, said = run(sandbox, "again.npz", *split, "--cold")
    assert SPLIT in said
    assert_same(sandbox.work / "whole.npz", sandbox.work / "again.npz")
    assert json.loads(path.read_text()) == known
    path.write_text(json.dumps([[key, 256, limit] for key, _, limit in known]))
    _, said = run(sandbox, "corrected.npz", *split)
    assert SPLIT in said
    assert_same(sandbox.work / "whole.npz", sandbox.work / "corrected.npz")
    assert all(rows < 256 for _, rows, _ in json.loads(path.read_text()))


IN_A_POOL = """
import numpy as np
import sublet


def train(split):
    import keras
    from keras import layers

    keras.utils.set_random_seed(1)
    dense = [layers.Dense(64, "relu") for _ in range(2)]
    pooled = layers.GlobalAveragePooling1D()
    model = keras.Sequential([layers.Input((512, 16)), *dense, pooled, layers.Dense(1)])
    model.compile("adam", "mse")
    fit = (lambda *words, **options: sublet.fit(model, *words, **options)) if split else model.fit
    fit(np.ones((256, 512, 16), "f"), np.ones((256, 1), "f"), batch_size=256, verbose=0)
    return model.get_weights()


if __name__ == "__main__":
    with sublet.Pool(memory="96MiB") as pool:
        whole = pool.submit(train, False, memory="512MiB")
        parts = pool.submit(train, True)
        for one, other in zip(whole.result(), parts.result()):
            np.testing.assert_allclose(one, other, atol=1e-5)
"""


def test_a_plan_is_what_a_run_does_and_trains_nothing(sandbox: Sandbox) -> None:
    sandbox.write("learn.py", TRAIN)
    # Nowhere near a size at which a little more or less makes it other micro-batches.
    answer = sandbox.sublet("plan", "--memory", "120MiB", "learn.py", "planned.npz", timeout=None)
    assert answer.returncode == 0, answer.stderr
    first, way, time, command = answer.stdout.splitlines()
    assert first.startswith("learn.py: batches of 256; whole, they need about ")
    assert " micro-batches of " in way
    assert time.endswith(" for 2 epochs of 2 steps")
    _, said = run(sandbox, "real.npz", *command.split()[2:-2])
    assert way.split(",")[0].strip() in said


def test_fit_of_sublet_trains_in_parts_in_a_pool(sandbox: Sandbox) -> None:
    sandbox.write("pools.py", IN_A_POOL)
    answer = sandbox.python("pools.py", timeout=None)
    assert answer.returncode == 0, answer.stderr
    assert f"batches of 256 {SPLIT} " in answer.stderr


def test_a_model_of_which_one_row_does_not_fit_says_by_how_much(sandbox: Sandbox) -> None:
    sandbox.write("one_row.py", ONE_ROW)
    answer = sandbox.sublet(
        "run", "--memory", "48MiB", "--on-oom", "split", "one_row.py", timeout=None
    )
    assert answer.returncode == 1
    assert "sublet: a micro-batch of 1 does not fit in 48 MiB" in answer.stderr
    assert "lacks at least" in answer.stderr
    assert "the program needed more memory than its lease" in answer.stderr


def test_arrays_stay_beside_the_lease_and_give_the_same(sandbox: Sandbox) -> None:
    """Shuffled by Keras, cast as by Keras, in structures; what they hold would not fit."""
    sandbox.write("learn.py", ARRAYS)
    whole, _ = run(sandbox, "whole.npz", "--memory", "512MiB")
    assert whole["peak"] > 40 << 20
    small, said = run(sandbox, "rows.npz", "--memory", "24MiB", "--on-oom", "split")
    assert small["peak"] < 24 << 20
    assert "micro-batches" not in said
    with np.load(sandbox.work / "whole.npz") as known, np.load(sandbox.work / "rows.npz") as found:
        for name in known.files:
            np.testing.assert_array_equal(known[name], found[name])
