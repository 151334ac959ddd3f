"""Models in parts train like whole ones, on two logical CPUs. All of it in one process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

TRAININGS = Path(__file__).with_name("trainings.py")
TOLERANCE = {"half_precision": 2e-3, "sure": 2e-3}
"""Losses of the last are in the hundreds."""
SAME = ("skips", "masked", "nested", "compares_rows", "added_sums", "half_precision", "sure")


@pytest.fixture(scope="module")
def answer(real_processes: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    pool = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPU_BFC_MEM_LIMIT_IN_MB": "2048"}  # It counts.
    ran = subprocess.run(
        [sys.executable, str(TRAININGS)],
        cwd=tmp_path_factory.mktemp("parts"),
        env={**os.environ, **pool, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize("case", SAME)
def test_weights_losses_metrics_and_predictions_are_those_of_the_whole(
    answer: Any, case: str
) -> None:
    assert answer["same"].keys() == set(SAME)
    for name, difference in answer["same"][case].items():
        assert difference <= TOLERANCE.get(case, 1e-5), name


def test_random_numbers_are_the_same_when_activations_are_computed_again(answer: Any) -> None:
    """And statistics move; what is not the same as in whole batches is said."""
    found = answer["dropout"]
    assert found["differ"] <= 1e-6
    assert found["moved"] > 0
    assert found["said"].startswith("sublet: sequential")
    assert "BatchNormalization sees 2 rows at a time" in found["said"]
    assert "Dropout draws other random numbers" in found["said"]


def test_activations_that_are_computed_again_take_less_memory(answer: Any) -> None:
    kept, again = answer["peaks"]
    assert again < 0.8 * kept


def test_parts_are_shown_with_their_memory_and_saved_as_the_model_they_are_of(answer: Any) -> None:
    found = answer["looks"]
    title, head, *rows = found["repr"].splitlines()
    assert title == "tower in 2 parts: MiB for batches of 8 in 4 micro-batches"
    assert head.split() == [
        *("device", "layers", "weights", "gradients", "optimizer", "activations", "all", "peak")
    ]
    assert [row.split()[0] for row in rows] == ["CPU:0", "CPU:1"]
    sizes = [total for _, _, total, _ in found["memory"]]
    assert max(sizes) < 0.7 * sum(sizes)
    assert all(0 < weights < total for _, weights, total, _ in found["memory"])
    assert found["devices"] == ["CPU:0", "CPU:1"]
    assert found["slots"] == ["CPU:0", "CPU:1"]
    assert found["saved"] == 0
    assert found["uncut"] == pytest.approx(found["loaded"], rel=1e-5)


def test_a_function_builds_the_model_after_the_devices_were_made(answer: Any) -> None:
    assert answer["built"] == ["CPU:0", "CPU:1", "CPU:2"]


REFUSED = {
    "no model": "int is not a model of Keras 3 on TensorFlow.",
    "one part": "parts is 1. A split model has at least 2; one part is the model itself.",
    "many parts": "There is no device GPU:0 here; there are CPU:0, CPU:1, CPU:2. `sublet run",
    "more parts than layers": "has 2 layers, too few for 3 parts. Ask for fewer parts.",
    "one device": "2 parts need as many devices; 1 named. Name more of them.",
    "odd device": "'tpu' is no name of a device. They are called",
    "twice": "names one twice. Each part has its own.",
    "no list": "devices is 'CPU:0'. Name several in a list",
    "too late": "TensorFlow has started, so it makes no logical CPUs any more. Give sublet.split a "
    "function that builds the model, or write before the model is built: tf.config.set_logical_",
    "no rows": "batch_size is 0. Give a whole number above 0.",
    "not built": "is not built yet: its shapes are not known. Begin it with keras.Input",
    "no graph": "Subclassed computes in a `call` of its own, so there is no graph of layers to cut",
    "own step": "OwnStep.train_step is the program's own.",
    "stateful": "is stateful: its state belongs to a batch.",
    "tied": "are used from beginning to end, and have to be in one part. Ask for fewer parts.",
    "across rows": "computes for a row depends on the other rows of its batch.",
    "xla": "XLA compiles for one device, and this model has several: leave jit_compile out.",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_split_is_refused_with_what_to_do(answer: Any, what: str) -> None:
    assert answer["refused"].keys() == REFUSED.keys()
    assert REFUSED[what] in answer["refused"][what]
