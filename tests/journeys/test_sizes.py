"""Leases that size themselves, with real programs."""

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from support.sandbox import Sandbox, wait_for

TRAIN = """
import sys
import numpy as np
import keras

batch = int(sys.argv[sys.argv.index("--batch-size") + 1])
keras.utils.set_random_seed(1)
rows = np.ones([4096, 1024], "float32")
model = keras.Sequential([keras.layers.Dense(1024, "relu"), keras.layers.Dense(1)])
model.compile("sgd", "mse", jit_compile=False)
model.fit(rows, rows[:, :1], batch_size=batch, epochs=3, verbose=0)
model.save("model.keras")
"""

TRIMMED = """
import json, os, time
import tensorflow as tf

from sublet.formats import shares

lease = json.loads(os.environ["SUBLET_LEASE"])

def ask(ceiling):
    path = os.path.join(lease["dir"], "ceiling")
    with open(path + ".new", "w") as file:
        file.write(str(ceiling))
    os.replace(path + ".new", path)
    while [share.limit for share in shares.read(lease["dir"])] != [ceiling]:
        time.sleep(0.02)

kept = tf.zeros([100, 1 << 18])
ask(200 << 20)
within = tf.zeros([20, 1 << 18])
try:
    tf.zeros([1000, 1 << 18])
except tf.errors.ResourceExhaustedError:
    print("refused")
ask(lease["ceiling"])
tf.zeros([1000, 1 << 18])
print("given back")
"""


def _run(sandbox: Sandbox, *words: str) -> dict[str, Any]:
    sandbox.sublet("run", "-q", "--report", "report.json", *words, check=True)
    return json.loads((sandbox.work / "report.json").read_text())  # type: ignore[no-any-return]


def test_the_second_run_gets_what_the_first_one_showed_and_explain_says_so(
    either_sandbox: Sandbox,
) -> None:
    sandbox = either_sandbox
    sandbox.write("train.py", TRAIN)
    words = ("train.py", "--batch-size", "2048")
    first, second = _run(sandbox, *words), _run(sandbox, *words)
    assert second["lease"] < first["lease"] / 4
    assert first["peak"] < second["lease"] <= 1.32 * first["peak"] + (64 << 20)

    text = sandbox.sublet("explain", str(second["job"]), check=True).stdout
    assert f"#{first['job']} " in text
    assert f"#{second['job']} " not in text.partition("\n")[2]
    assert "of the one run that counts" in text
    assert max(map(len, text.splitlines())) <= 80
    facts = json.loads(sandbox.sublet("explain", "--json", str(second["job"]), check=True).stdout)
    assert [run["peak"] for run in facts["history"]["runs"]] == [first["peak"]]
    assert facts["lease"]["ceiling"] == second["lease"]


def test_a_probe_forecasts_the_peak_saves_nothing_and_auto_goes_by_it(
    either_sandbox: Sandbox,
) -> None:
    """It runs on the CPU; a card may need half more."""
    sandbox = either_sandbox
    more = 1.0 if sandbox.device == "cpu" else 1.5
    sandbox.write("train.py", TRAIN)
    words = ("train.py", "--batch-size", "2048")
    answer = json.loads(sandbox.sublet("probe", "--json", *words, check=True).stdout)
    assert [point["batch"] for point in answer["points"]][:2] == [0.25, 0.5]
    assert answer["low"] < answer["expected"] < answer["high"]
    assert not (sandbox.work / "model.keras").exists()

    ran = _run(sandbox, *words)
    assert answer["low"] <= ran["peak"] <= answer["high"]
    high = more * answer["high"]
    assert high <= ran["lease"] <= 1.2 * high + (66 << 20)
    assert (sandbox.work / "model.keras").exists()


def test_a_probe_of_no_tensorflow_program_is_refused_with_its_last_words(sandbox: Sandbox) -> None:
    sandbox.write("sad.py", "raise SystemExit('no data today')")
    refused = sandbox.sublet("probe", "sad.py")
    assert refused.returncode == 2
    assert "no data today" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_explaining_a_job_that_never_was_is_refused(sandbox: Sandbox) -> None:
    refused = sandbox.sublet("explain", "999999")
    assert refused.returncode == 2
    assert "There is no job 999999" in refused.stderr


def test_a_trimmed_program_is_held_to_its_new_ceiling_and_can_be_given_more_again(
    sandbox: Sandbox,
) -> None:
    sandbox.write("trimmed.py", TRIMMED)
    answer = sandbox.sublet("run", "-q", "--memory", "1536MiB", "trimmed.py", check=True)
    assert answer.stdout.split("\n") == ["refused", "given back", ""]


HOLDS = """
import os, sys
import tensorflow as tf
size = {size}
x = tf.zeros([size, 1 << 18])
open("held", "w").close()
{then}
"""


def _lease(sandbox: Sandbox, *words: str) -> int:
    """The lease of a run that may fail."""
    sandbox.sublet("run", "-q", "--report", "report.json", *words)
    return int(json.loads((sandbox.work / "report.json").read_text())["lease"])


def test_a_program_that_was_edited_is_not_held_to_what_it_was(sandbox: Sandbox) -> None:
    """It gets what an unknown one gets: twenty times as much is there, and nobody waits for it."""
    sandbox.write("dev.py", HOLDS.format(size=20, then=""))
    first, second = _lease(sandbox, "dev.py"), _lease(sandbox, "dev.py")
    assert second < first / 2
    sandbox.write("dev.py", HOLDS.format(size=400, then=""))
    ran = _run(sandbox, "dev.py")
    assert (ran["code"], ran["lease"]) == (0, first)


def test_a_run_that_failed_before_it_computed_teaches_nothing(sandbox: Sandbox) -> None:
    sandbox.write("new.py", HOLDS.format(size=1, then="undefined"))
    first = _lease(sandbox, "new.py")
    assert _lease(sandbox, "new.py") == first


def test_a_program_that_does_not_use_tensorflow_soon_holds_little(sandbox: Sandbox) -> None:
    sandbox.write("plain.py", "print('no TensorFlow here')")
    first, second = _lease(sandbox, "plain.py"), _lease(sandbox, "plain.py")
    assert second <= first / 8


def test_the_advice_after_out_of_memory_is_above_what_was_held_and_keeps_the_options(
    either_sandbox: Sandbox,
) -> None:
    sandbox = either_sandbox
    sandbox.write("train.py", HOLDS.format(size=300, then=""))
    _run(sandbox, "train.py")
    words = ("--cpus", "1", "--name", "my training", "--device", sandbox.device)
    died = sandbox.sublet("run", "--memory", "64MiB", *words, "train.py")
    assert died.returncode == 1
    (line,) = [line for line in died.stderr.splitlines() if line.startswith("  try ")]
    assert f"--device {sandbox.device} --cpus 1 --name 'my training' train.py" in line
    assert int(line.partition("--memory ")[2].partition("MiB")[0]) > 300


def test_a_process_is_charged_by_how_it_starts(new_sandbox: Callable[..., Sandbox]) -> None:
    """One cold run does not make the next warm one dear."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="4GiB")
    sandbox.write("train.py", HOLDS.format(size=1, then=""))
    _run(sandbox, "train.py")
    _run(sandbox, "--cold", "train.py")
    sandbox.sublet("submit", "--memory", "64MiB", "train.py", check=True)
    sandbox.sublet("wait", "3", check=True)
    warm = json.loads(sandbox.sublet("explain", "--json", "3", check=True).stdout)["lease"]
    sandbox.sublet("submit", "--cold", "--memory", "64MiB", "train.py", check=True)
    sandbox.sublet("wait", "4", check=True)
    cold = json.loads(sandbox.sublet("explain", "--json", "4", check=True).stdout)["lease"]
    assert cold["charge"] - cold["ceiling"] > warm["charge"] - warm["ceiling"]
    words = sandbox.sublet("explain", "4", check=True).stdout.split()
    assert "after a cold start" in " ".join(words)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_a_user_ends_is_stopped_and_has_not_failed(sandbox: Sandbox, number: int) -> None:
    """Nor is it taken for a failure of the program when its next lease is sized."""
    wait = "import time\nwhile True: time.sleep(0.05)"
    sandbox.write("long.py", HOLDS.format(size=100, then=wait))
    (sandbox.work / "held").unlink(missing_ok=True)
    with sandbox.start("run", "long.py") as client:
        wait_for((sandbox.work / "held").exists, "the program computes")
        client.send_signal(number)
        client.wait()
    rows = json.loads(sandbox.sublet("ps", "--all", "--json", check=True).stdout)
    (row,) = [row for row in rows["jobs"] if row["name"] == "long.py"][:1]
    assert row["by_user"]
    text = sandbox.sublet("ps", str(row["id"]), check=True).stdout
    assert "state    stopped" in text
    assert "failed" not in text
    assert "interrupted (Ctrl-C)" in text
