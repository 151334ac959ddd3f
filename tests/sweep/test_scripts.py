"""`sublet sweep` of programs, with real jobs."""

import json
import os
import signal

import pytest

from support.sandbox import Sandbox, wait_for

pytestmark = pytest.mark.slow

PROGRAM = """
import argparse, os, time

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--gate", default="")
asked = parser.parse_args()
with open("runs", "a") as file:
    file.write(f"{asked.lr} {asked.epochs}\\n")
if asked.lr > 5:
    raise SystemExit(3)
while asked.gate and not os.path.exists(asked.gate):
    time.sleep(0.02)
for epoch in range(asked.epochs):
    print(f"{epoch} - loss: 9 - val_loss: {asked.lr + 1 / (epoch + 1)}", flush=True)
"""


@pytest.fixture
def box(sandbox: Sandbox) -> Sandbox:
    sandbox.write("train.py", PROGRAM)
    return sandbox


def runs(box: Sandbox) -> list[str]:
    """The runs of the program so far: rate and epochs."""
    path = box.work / "runs"
    return sorted(path.read_text().splitlines()) if path.exists() else []


def test_a_program_is_run_for_each_parameter_and_ranked(box: Sandbox) -> None:
    """Options may stand behind the program; a run that fails is last, and the exit code tells."""
    ran = box.sublet("sweep", "train.py", "--epochs", "3", "--grid", "lr=2,1,9", "--json")
    assert ran.returncode == 1, ran.stderr
    found = json.loads(ran.stdout)
    assert found["best"] == 1
    assert [trial["state"] for trial in found["trials"]] == ["done", "done", "failed"]
    assert found["trials"][1]["curves"]["val_loss"] == pytest.approx([2, 1.5, 4 / 3])
    assert found["trials"][2]["error"] == "exit code 3"
    assert runs(box) == ["1.0 3", "2.0 3", "9.0 3"]
    rows = {row["id"]: row for row in jobs(box)}
    assert [rows[trial["job"]]["name"] for trial in found["trials"]] == [
        "train.py[0]",
        "train.py[1]",
        "train.py[2]",
    ]


def jobs(box: Sandbox) -> list[dict[str, object]]:
    return json.loads(box.sublet("ps", "-a", "--json", check=True).stdout)["jobs"]  # type: ignore[no-any-return]


def test_a_killed_sweep_takes_its_jobs_up_again_and_runs_nothing_twice(box: Sandbox) -> None:
    """Successive halving from a file, killed while its first rung runs."""
    box.write(
        "sweep.toml",
        'program = ["train.py", "--gate", "gate"]\nsearch = "halving"\nbudget = "epochs=9"\n'
        'directory = "kept"\n[space]\nlr = "1-4"\n',
    )
    first = box.start("sweep", "sweep.toml")
    wait_for(lambda: runs(box), "the first trial runs")
    journal = box.work / "kept/journal.jsonl"
    wait_for(lambda: journal.read_text().count('"job"') >= 4, "all jobs are written down")
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    with journal.open("a") as file:
        file.write('{"event": "ended", "tri')
    (box.work / "gate").touch()
    again = box.sublet("sweep", "sweep.toml")
    assert again.returncode == 0, again.stderr
    assert runs(box) == ["1.0 1", "1.0 9", "2.0 1", "3.0 1", "4.0 1"]
    title, best, *_ = again.stdout.splitlines()
    assert title.split()[:3] == ["trial", "val_loss", "lr"]
    assert best.split()[:3] == ["0", "1.111", "1"]
    more = box.sublet("sweep", "sweep.toml", "--grid", "lr=1,2")
    assert more.returncode == 2
    assert "has another sweep: space was" in more.stderr


def test_ctrl_c_cancels_the_jobs_that_have_not_ended(box: Sandbox) -> None:
    sweep = box.start("sweep", "--grid", "lr=1,2", "train.py", "--gate", "never")
    wait_for(lambda: len(runs(box)) == 2, "both trials run")
    sweep.send_signal(signal.SIGINT)
    _, said = sweep.communicate()
    assert sweep.returncode == -signal.SIGINT
    assert "stopped; 2 jobs were cancelled" in said
    wait_for(lambda: not box.status()["leases"], "no job is left")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.py"], "nothing to try"),
        (["--grid", "lr", "train.py"], "not NAME=VALUES"),
        (["--grid", "lr=1", "nowhere.py"], "no such file"),
        (["--grid", "lr=1..2.5", "train.py"], "no end of values"),
        (["--grid", "lr=1,2", "--search", "halving", "train.py"], "how long to train"),
        (["nothing.toml"], "cannot be read"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused_before_anything_runs(
    box: Sandbox, words: list[str], said: str
) -> None:
    ran = box.sublet("sweep", "--directory", "kept", *words)
    assert ran.returncode == 2
    assert said in ran.stderr
    assert not (box.work / "kept").exists()
    assert runs(box) == []
