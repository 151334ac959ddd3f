"""Profiles of programs under leases: TensorFlow's own, and one time line of all of them."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sublet.formats.profile_order import ProfileOrder, place, withdraw
from sublet.formats.shares import start_time
from support.queue import reached, row, submit
from support.sandbox import PATIENCE, Sandbox, wait_for

TRAIN = """
import os
import keras
import numpy as np

class UntilStop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = os.path.exists("stop")

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
model.compile("sgd", "mse")
rows = np.ones((64, 4), "float32")
model.fit(rows, rows[:, :1], batch_size=8, epochs=10**9, verbose=0, callbacks=[UntilStop()])
"""

LOOP = """
import os
import time
import tensorflow as tf

weights = tf.Variable(tf.ones([64, 64]))

@tf.function
def descend():
    weights.assign(tf.tanh(weights @ weights))

while not os.path.exists("stop"):
    descend()
    time.sleep(0.01)
"""

UNTIL_RECORDED = """
import glob
import time
import tensorflow as tf

tf.constant(1)  # Starts the runtime.
while not glob.glob("ours/.*/*"):
    time.sleep(0.02)
"""

PROFILES_ITSELF = f"""
{UNTIL_RECORDED}
import keras
import numpy as np
import tensorflow as tf

class OwnProfile(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 3:
            tf.profiler.experimental.start("own")
    def on_train_batch_end(self, batch, logs=None):
        if batch == 5:
            tf.profiler.experimental.stop()

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
rows = np.ones((64, 4), "float32")
model.fit(rows, rows[:, :1], batch_size=8, epochs=1, verbose=0, callbacks=[OwnProfile()])
"""

SESSIONS = f"""
{UNTIL_RECORDED}
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
total = tf.get_variable("total", (), initializer=tf.zeros_initializer())
add = tf.assign_add(total, 1.0)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(9):
        session.run(add)
"""


PLAIN = """
import glob
import time
while not glob.glob("ours/.*"):
    time.sleep(0.02)
print("done", flush=True)
"""

CALLED = """
import sublet

profile = sublet.run(["eager.py"], memory="100MiB", profile="ours").profile
print(len(profile.profiles), profile.trace)
print(profile.notes)
"""


def profiled(sandbox: Sandbox, *words: str) -> dict[str, Any]:
    answer = sandbox.sublet("profile", "--json", *words)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)  # type: ignore[no-any-return]


def events(trace: str | Path) -> list[dict[str, Any]]:
    """The events of a time line; each is one that Chrome and Perfetto know."""
    read = json.loads(Path(trace).read_text())["traceEvents"]
    for event in read:
        assert event["ph"] in ("X", "i", "C", "M")
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert event["ph"] == "M" or event["ts"] >= 0
        assert event["ph"] != "X" or event["dur"] >= 0
    return read  # type: ignore[no-any-return]


def steps(trace: str | Path, job: int) -> list[dict[str, Any]]:
    return [one for one in events(trace) if one.get("cat") == "step" and one["pid"] == job]


def has_started_tensorflow(sandbox: Sandbox, job: int) -> None:
    wait_for(lambda: row(sandbox, job)["peak"], f"TensorFlow runs in #{job}")


def test_two_programs_side_by_side_are_on_one_time_line(sandbox: Sandbox) -> None:
    """One with Keras, one with a loop of its own; each is profiled in turn while both run."""
    sandbox.write("train.py", TRAIN)
    sandbox.write("loop.py", LOOP)
    train = submit(sandbox, "train.py", memory="150MiB")
    loop = submit(sandbox, "loop.py", memory="100MiB")
    for job in (train, loop):
        has_started_tensorflow(sandbox, job)

    profile = profiled(sandbox, str(train), "--steps", "40")
    assert profile["steps"] == 40
    assert profile["notes"] == []
    assert profile["programs"] == 2
    assert Path(profile["logdir"]) == sandbox.home / "logs" / f"{train}.1.profile"
    (xplane,) = map(Path, profile["profiles"])
    assert xplane.parent.parent == Path(profile["logdir"], "plugins", "profile")
    contents = xplane.read_bytes()
    assert b"step_num" in contents
    assert b"train step" in contents
    timed = steps(profile["trace"], train)
    assert len(timed) >= 40
    assert all(one["name"].startswith("train step ") for one in timed)
    assert any("descend" in one["name"] for one in steps(profile["trace"], loop))
    line = events(profile["trace"])
    operations = [one for one in line if one.get("cat") == "op" and one["pid"] == train]
    begins = min(one["ts"] for one in timed)
    ends = max(one["ts"] + one["dur"] for one in timed)
    during = [one for one in operations if begins <= one["ts"] <= ends]
    assert during, "operations are on the clock of the steps"
    marks = {(one["pid"], one["name"]) for one in line if one["ph"] == "i"}
    assert (train, "granted 150 MiB") in marks
    assert (loop, "granted 100 MiB") in marks
    counters = {(one["pid"], one["name"]) for one in line if one["ph"] == "C"}
    assert (train, "leased memory (MiB)") in counters
    assert (train, "used memory (MiB)") in counters

    by_time = profiled(sandbox, str(loop), "--seconds", "2", "--logdir", "here")
    assert Path(by_time["logdir"]) == sandbox.work / "here"
    assert by_time["steps"] > 0
    assert any("descend" in one["name"] for one in steps(by_time["trace"], loop))

    # Only one at a time.
    parts = sandbox.work / "parts"
    parts.mkdir()
    mine = ProfileOrder(os.getpid(), start_time(os.getpid()) or 0, str(parts), loop, str(parts))
    place(str(sandbox.home / "runs" / f"{loop}.1"), mine)
    second = sandbox.sublet("profile", str(loop), "--logdir", "second")
    withdraw(str(sandbox.home / "runs" / f"{loop}.1"), mine)
    assert second.returncode == 2
    assert f"is being profiled already, by process {os.getpid()}." in second.stderr

    # What there is by Ctrl-C is kept.
    first = sandbox.start("profile", str(loop), "--seconds", "60", "--logdir", "first")
    wait_for(lambda: [*Path(sandbox.work, "first").glob(".*/" + f"{loop}-*")], "it records")
    first.send_signal(signal.SIGINT)
    out, err = first.communicate(timeout=PATIENCE)
    assert first.returncode == 0, err
    assert "note: it was interrupted" in out
    assert [*Path(sandbox.work, "first").glob("plugins/profile/*/*.xplane.pb")]

    # A program that ends in the middle.
    last = sandbox.start("profile", str(train), "--seconds", "60", "--logdir", "last")
    wait_for(lambda: [*Path(sandbox.work, "last").glob(".*/" + f"{train}-*")], "it records")
    sandbox.write("stop", "")
    out, err = last.communicate(timeout=PATIENCE)
    assert last.returncode == 0, err + out
    (trace,) = Path(sandbox.work, "last").glob("trace-*.json")
    assert steps(trace, train)
    for job in (train, loop):
        reached(sandbox, job, "finished")
    for directory in ("here", "first", "last"):
        assert not [*Path(sandbox.work, directory).glob(".*")], "no parts are left"
    answer = sandbox.sublet("profile", str(train))
    assert answer.returncode == 2
    assert f"Job {train} has ended" in answer.stderr


def test_a_program_that_profiles_itself_is_left_alone(sandbox: Sandbox) -> None:
    """`sublet run --profile`, from its first step on; ours ends where its own begins."""
    sandbox.write("train.py", PROFILES_ITSELF)
    ran = sandbox.sublet("run", "--memory", "150MiB", "--profile=ours", "train.py")
    assert ran.returncode == 0, ran.stderr
    assert "the program began one of its own" in ran.stderr
    assert f"tensorboard --logdir {sandbox.work / 'ours'}" in ran.stderr
    assert [*sandbox.work.glob("own/plugins/profile/*/*.xplane.pb")]
    (xplane,) = sandbox.work.glob("ours/plugins/profile/*/*.xplane.pb")
    assert b"train step" in xplane.read_bytes()
    (trace,) = sandbox.work.glob("ours/trace-*.json")
    jobs = {one["pid"] for one in events(trace) if one.get("cat") == "step"}
    assert len(jobs) == 1
    assert len(steps(trace, *jobs)) == 8


def test_a_job_in_the_queue_is_profiled_when_it_starts(sandbox: Sandbox) -> None:
    sandbox.write("sessions.py", SESSIONS)
    answer = sandbox.sublet(
        "submit", "--json", "--memory", "100MiB", "--profile=ours", "sessions.py", check=True
    )
    started = json.loads(answer.stdout)
    place = Path(started["profile"])
    assert place == sandbox.work / "ours"
    (trace,) = wait_for(lambda: [*place.glob("trace-*.json")], "the profile is there")
    wait_for(lambda: not [*place.glob(".*")], "the recorder has ended")
    assert {one["name"] for one in steps(trace, started["id"])} == {"Session.run"}
    marks = [one["name"] for one in events(trace) if one["ph"] == "i"]
    assert "granted 100 MiB" in marks
    assert "released 100 MiB" in marks


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["profile", "987654"], "There is no job 987654."),
        (["profile", "none.py"], "neither a job number nor a job's name"),
        (["profile", "1", "--steps", "0"], "--steps"),
        (["profile", "1", "--seconds", "3600"], "--seconds"),
        (["run", "--profile=file/below", "ok.py"], "cannot be written to"),
        (["submit", "--profile=file/below", "ok.py"], "cannot be written to"),
        (["submit", "--profile", "--array", "0-3", "ok.py"], "An array is not profiled."),
    ],
)
def test_what_cannot_be_profiled_is_refused(sandbox: Sandbox, words: list[str], says: str) -> None:
    sandbox.write("ok.py", "print('ran')")
    sandbox.write("file", "")
    answer = sandbox.sublet(*words)
    assert answer.returncode == 2
    assert says in answer.stderr
    assert "Traceback" not in answer.stderr
    assert answer.stdout == ""


def test_a_program_without_steps_is_told_so(sandbox: Sandbox) -> None:
    """Through Python."""
    sandbox.write("eager.py", UNTIL_RECORDED)
    sandbox.write("call.py", CALLED)
    ran = sandbox.python("call.py", check=True)
    (trace,) = sandbox.work.glob("ours/trace-*.json")
    assert ran.stdout.splitlines()[0] == f"0 {trace}"
    assert "no step began; a program without steps is profiled with" in ran.stdout


def test_a_program_without_tensorflow_has_a_time_line_of_its_lease(sandbox: Sandbox) -> None:
    sandbox.write("plain.py", PLAIN)
    ran: subprocess.CompletedProcess[str] = sandbox.sublet("run", "--profile=ours", "plain.py")
    assert ran.returncode == 0
    assert ran.stdout == "done\n"
    assert "TensorFlow did not start in it" in ran.stderr
    (trace,) = sandbox.work.glob("ours/trace-*.json")
    assert any(one["name"].startswith("granted ") for one in events(trace))
