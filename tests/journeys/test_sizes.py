"""Leases that size themselves, with real programs."""

import json
from typing import Any

from support.box import Box

TRAIN = """
import sys
import numpy as np
import keras

batch = int(sys.argv[sys.argv.index("--batch-size") + 1])
keras.utils.set_random_seed(1)
rows = np.ones([4096, 1024], "float32")
model = keras.Sequential([keras.layers.Dense(1024, "relu"), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(rows, rows[:, :1], batch_size=batch, epochs=3, verbose=0)
model.save("model.keras")
"""

TRIMMED = """
import json, os, resource, time
import tensorflow as tf

lease = json.loads(os.environ["SUBLET_LEASE"])
unlimited = resource.getrlimit(resource.RLIMIT_DATA)

def ask(ceiling):
    before = resource.getrlimit(resource.RLIMIT_DATA)
    path = os.path.join(lease["dir"], "ceiling")
    with open(path + ".new", "w") as file:
        file.write(str(ceiling))
    os.replace(path + ".new", path)
    while resource.getrlimit(resource.RLIMIT_DATA) == before:
        time.sleep(0.02)

kept = tf.zeros([100, 1 << 18])
ask(140 << 20)
within = tf.zeros([20, 1 << 18])
try:
    tf.zeros([1000, 1 << 18])
except tf.errors.ResourceExhaustedError:
    print("refused")
ask(lease["ceiling"])
assert resource.getrlimit(resource.RLIMIT_DATA) == unlimited
tf.zeros([1000, 1 << 18])
print("given back")
"""


def _run(box: Box, *words: str) -> dict[str, Any]:
    box.sublet("run", "-q", "--report", "report.json", *words, check=True)
    return json.loads((box.work / "report.json").read_text())  # type: ignore[no-any-return]


def test_the_second_run_gets_what_the_first_one_showed_and_explain_says_so(box: Box) -> None:
    box.write("train.py", TRAIN)
    words = ("train.py", "--batch-size", "2048")
    first, second = _run(box, *words), _run(box, *words)
    assert second["lease"] < first["lease"] / 4
    assert first["peak"] < second["lease"] <= 1.32 * first["peak"]

    text = box.sublet("explain", str(second["job"]), check=True).stdout
    assert f"#{first['job']} " in text
    assert f"#{second['job']} " not in text.partition("\n")[2]
    assert "of the one run that counts" in text
    assert max(map(len, text.splitlines())) <= 80
    facts = json.loads(box.sublet("explain", "--json", str(second["job"]), check=True).stdout)
    assert [run["peak"] for run in facts["history"]["runs"]] == [first["peak"]]
    assert facts["lease"]["ceiling"] == second["lease"]


def test_a_probe_forecasts_the_peak_saves_nothing_and_auto_goes_by_it(box: Box) -> None:
    box.write("train.py", TRAIN)
    words = ("train.py", "--batch-size", "2048")
    told = json.loads(box.sublet("probe", "--json", *words, check=True).stdout)
    assert [point["batch"] for point in told["points"]][:2] == [0.25, 0.5]
    assert told["low"] < told["expected"] < told["high"]
    assert not (box.work / "model.keras").exists()

    ran = _run(box, *words)
    assert told["low"] <= ran["peak"] <= told["high"]
    assert told["high"] <= ran["lease"] <= 1.2 * told["high"] + (2 << 20)
    assert (box.work / "model.keras").exists()


def test_a_probe_of_no_tensorflow_program_is_refused_with_its_last_words(box: Box) -> None:
    box.write("sad.py", "raise SystemExit('no data today')")
    refused = box.sublet("probe", "sad.py")
    assert refused.returncode == 2
    assert "no data today" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_explaining_a_job_that_never_was_is_refused(box: Box) -> None:
    refused = box.sublet("explain", "999999")
    assert refused.returncode == 2
    assert "There is no job 999999" in refused.stderr


def test_a_trimmed_program_is_held_to_its_new_ceiling_and_can_be_given_more_again(
    box: Box,
) -> None:
    box.write("trimmed.py", TRIMMED)
    told = box.sublet("run", "-q", "--memory", "1536MiB", "trimmed.py", check=True)
    assert told.stdout.split("\n") == ["refused", "given back", ""]
