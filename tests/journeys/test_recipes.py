"""The programs of examples/recipes, as their pages show them."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.box import Box, wait_for

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"


def run(box: Box, name: str) -> Any:
    """Run a recipe to its end."""
    return subprocess.run(
        [sys.executable, RECIPES / name],
        cwd=box.work,
        env={**box.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        text=True,
        capture_output=True,
    )


def trainings(box: Box) -> list[int]:
    """The jobs of all workers that have run `train`."""
    rows = json.loads(box.sublet("ps", "-a", "--json", check=True).stdout)["rows"]
    return [row["id"] for row in rows if row["name"] == "train"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["optuna_trials.py", "keras_tuner_trials.py"])
def test_trials_of_a_search_run_in_clean_workers(box: Box, name: str) -> None:
    """Each under a lease of its own; none is left."""
    before = trainings(box)
    ran = run(box, name)
    assert ran.returncode == 0, ran.stderr
    found = re.search(r"^4 trials, best loss (\d\.\d+) with \{.*\}$", ran.stdout, re.MULTILINE)
    assert found is not None, ran.stdout + ran.stderr
    assert float(found[1]) < 1
    assert len(trainings(box)) == len(before) + 4
    wait_for(lambda: not box.status()["leases"], "no worker is left")
