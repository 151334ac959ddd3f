"""The programs of examples/recipes and examples/serving, as their pages show them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.sandbox import Sandbox, wait_for

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(sandbox: Sandbox, name: str) -> Any:
    """Run an example to its end."""
    return sandbox.python(
        EXAMPLES / name, env={**sandbox.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}, timeout=None
    )


def trainings(sandbox: Sandbox) -> list[int]:
    """The jobs of all workers that have run `train`."""
    rows = json.loads(sandbox.sublet("ps", "-a", "--json", check=True).stdout)["jobs"]
    return [row["id"] for row in rows if row["name"] == "train"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["recipes/optuna_trials.py", "recipes/keras_tuner_trials.py"])
def test_trials_of_a_search_run_in_clean_workers(sandbox: Sandbox, name: str) -> None:
    """Each under a lease of its own; none is left."""
    before = trainings(sandbox)
    ran = run(sandbox, name)
    assert ran.returncode == 0, ran.stderr
    found = re.search(r"^4 trials, best loss (\d\.\d+) with \{.*\}$", ran.stdout, re.MULTILINE)
    assert found is not None, ran.stdout + ran.stderr
    assert float(found[1]) < 1
    assert len(trainings(sandbox)) == len(before) + 4
    wait_for(lambda: not sandbox.status()["leases"], "no worker is left")


@pytest.mark.slow
def test_a_sweep_over_small_models_saves_the_best(sandbox: Sandbox) -> None:
    ran = run(sandbox, "recipes/sweep_models.py")
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"^12 trials, best loss \d\.\d+ with \{.*\}$", ran.stdout, re.MULTILINE)
    assert ran.stdout.count("pruned") == 11
    assert (sandbox.work / "best.keras").exists()


@pytest.mark.slow
def test_a_batch_that_does_not_fit_is_trained_in_parts(sandbox: Sandbox) -> None:
    ran = run(sandbox, "recipes/large_batch.py")
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(r"loss \d\.\d{3}\n", ran.stdout)
    assert "sublet: batches of 256 do not fit in 96 MiB; training in " in ran.stderr


@pytest.mark.slow
def test_a_training_that_is_started_again_goes_on(sandbox: Sandbox) -> None:
    first, second = (run(sandbox, "recipes/preempted_training.py") for _ in range(2))
    assert re.fullmatch(r"loss \d\.\d{3} after 5 epochs\n", first.stdout), first.stderr
    assert second.stdout == first.stdout
    assert "preempted_training/ has all 5 epochs of this training" in second.stderr


@pytest.mark.slow
def test_a_model_is_trained_in_parts(sandbox: Sandbox) -> None:
    ran = run(sandbox, "recipes/model_in_parts.py")
    assert ran.returncode == 0, ran.stderr
    title, _, first, second, loss = ran.stdout.splitlines()
    assert title == "tower in 2 parts: MiB for batches of 128 in 4 micro-batches"
    assert [first.split()[0], second.split()[0]] == ["CPU:0", "CPU:1"]
    assert re.fullmatch(r"loss \d\.\d{3}", loss)
    assert (sandbox.work / "tower.keras").exists()


@pytest.mark.slow
def test_a_model_is_called_by_processes_without_tensorflow(sandbox: Sandbox) -> None:
    ran = run(sandbox, "serving/shared_model.py")
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"^process 2 got the classes \[\d(, \d){3}\]$", ran.stdout, re.MULTILINE)
    assert re.search(r"^3 requests in \d batches$", ran.stdout, re.MULTILINE)
    wait_for(lambda: not sandbox.status()["leases"], "no engine is left")
