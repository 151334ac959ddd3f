"""Random numbers of programs that were forked from one process: each program has its own."""

import json
import sys
from typing import Any

import pytest

import sublet
from support.sandbox import Sandbox

DRAW = """
import json, multiprocessing, random, secrets, tempfile, uuid

def draw():
    import keras, numpy as np, tensorflow as tf
    ones = np.ones((1, 64), "float32")
    numbers = tf.data.Dataset.range(64).shuffle(64)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        in_session = session.run(tf.random.uniform([4]))
    drawn = {
        "random": random.random(),
        "numpy.random": np.random.rand(),
        "numpy.random.permutation": np.random.permutation(64),
        "numpy.random.default_rng": np.random.default_rng().random(),
        "secrets": secrets.token_hex(),
        "tempfile": tempfile.mktemp(),
        "uuid1": uuid.uuid1(),
        "uuid4": uuid.uuid4(),
        "authkey": bytes(multiprocessing.current_process().authkey),
        "tensorflow": tf.random.uniform([4]).numpy(),
        "tensorflow.shuffle": tf.random.shuffle(tf.range(64)).numpy(),
        "tensorflow.session": in_session,
        "tensorflow.generator": tf.random.get_global_generator().normal([4]).numpy(),
        "tensorflow.data": list(numbers.as_numpy_iterator()),
        "keras": keras.random.uniform((4,)).numpy(),
        "keras.initializer": keras.initializers.GlorotUniform()((4, 4)).numpy(),
        "keras.weights": keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)]).get_weights(),
        "keras.dropout": keras.layers.Dropout(0.5)(ones, training=True).numpy(),
    }
    return {name: str(value) for name, value in drawn.items()}
"""


def same(drawn: list[dict[str, str]]) -> list[str]:
    """What two of them have in common."""
    return [name for name in drawn[0] if len({one[name] for one in drawn}) < len(drawn)]


@pytest.mark.every_python
def test_no_two_programs_draw_the_same_numbers(sandbox: Sandbox) -> None:
    """From any generator that a fresh interpreter seeds by chance."""
    sandbox.write("drawing.py", DRAW + "print(json.dumps(draw()))")
    runs = [sandbox.sublet("run", "--memory", "256MiB", "drawing.py", check=True) for _ in range(3)]
    assert all("started warm" in run.stderr for run in runs)
    assert same([json.loads(run.stdout.splitlines()[-1]) for run in runs]) == []


@pytest.mark.every_python
def test_numbers_are_new_for_who_imports_a_part_of_numpy_only(sandbox: Sandbox) -> None:
    """The package around it counts as imported, too."""
    sandbox.write("drawing.py", "from numpy.random import rand\nprint(rand())\n")
    runs = [sandbox.sublet("run", "drawing.py", check=True) for _ in range(2)]
    assert all("started warm" in run.stderr for run in runs)
    assert len({run.stdout for run in runs}) == 2


@pytest.mark.every_python
def test_what_is_drawn_after_seeding_is_what_python_draws(sandbox: Sandbox) -> None:
    """Also in a process that was forked."""
    script = "import keras\nkeras.utils.set_random_seed(7)\nprint(json.dumps(draw()))"
    sandbox.write("drawing.py", DRAW + script)
    plain = json.loads(sandbox.python("drawing.py", check=True).stdout)
    ours = json.loads(sandbox.sublet("run", "--memory", "256MiB", "drawing.py", check=True).stdout)
    by_chance = {"numpy.random.default_rng", "secrets", "tempfile", "uuid1", "uuid4", "authkey"}
    by_chance |= {"tensorflow.generator", "tensorflow.session"}
    assert {name for name in plain if plain[name] != ours[name]} <= by_chance


@pytest.mark.every_python
@pytest.mark.parametrize(
    "options",
    [{}, {"reuse": True}, {"isolation": "thread"}, {"isolation": "session"}],
    ids=["process", "reuse", "thread", "session"],
)
def test_no_two_workers_of_a_pool_draw_the_same_numbers(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Nor two threads of one, nor two calls."""
    monkeypatch.setenv("SUBLET_HOME", str(sandbox.home))
    sandbox.write("drawing.py", DRAW)
    monkeypatch.syspath_prepend(str(sandbox.work))
    sys.modules.pop("drawing", None)
    import drawing  # type: ignore[import-not-found]

    function = _in_numpy if options.get("isolation") == "session" else drawing.draw
    with sublet.Pool(2, memory="512MiB", **options) as pool:
        drawn = [call.result() for call in [pool.submit(function) for _ in range(4)]]
    # The key is the pool's; a reused worker keeps what a process keeps.
    assert set(same(drawn)) <= {"authkey"}


def _in_numpy() -> dict[str, str]:
    import random

    import numpy as np

    return {"random": str(random.random()), "numpy.random": str(np.random.rand())}
