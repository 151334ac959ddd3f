"""The scripts of docs/patterns.md do what the page says of them."""

import re
from pathlib import Path

import pytest

from support.sandbox import Sandbox

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}
SCRIPTS = {
    "programs/mlp_growth.py": r"accuracy 0\.\d+",
    "programs/tf1_fraction.py": r"loss \d+\.\d+",
    "programs/tf1_two_sessions.py": r"loss sum \d\.\d+, max \d\.\d+",
    "programs/data_pipeline.py": r"\d+ of 2700 bright",
    "programs/mixed_precision.py": r"accuracy 0\.\d+",
    "patterns/limit.py": r"peak \d+ MiB on CPU:0",
    "patterns/queue_runners.py": r"mean [45]\d\d",
    "patterns/visible_devices.py": r"/device:CPU:0: 100",
}
"""What each prints under `sublet run`."""
DISTRIBUTED = {
    "patterns/mirrored.py": r"2 replicas, loss \d\.\d+",
    "patterns/model_parallel.py": r"on .*CPU:0 and .*CPU:1: loss \d\.\d+, then 0\.\d+",
}
"""What each prints under `sublet launch --logical 2`."""
PROGRAMS = {
    "patterns/threads.py": "4 models; the same seed gives the same loss: True",
    "patterns/processes.py": "here: 8\nbest rate 0.3",
}
"""What each prints under `python`: these ask for leases themselves."""
ELSEWHERE = {
    "clusters/mirrored_workers.py",
    "clusters/parameter_server.py",
    "recipes/large_batch.py",
    "serving/shared_model.py",
}
"""Run by test_launch and test_recipes."""


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_under_a_lease(sandbox: Sandbox, name: str) -> None:
    environ = {**sandbox.environ, **QUIET}
    ran = sandbox.sublet("run", "--memory", "400MiB", str(EXAMPLES / name), env=environ)
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(SCRIPTS[name], ran.stdout.strip()), ran.stdout


@pytest.mark.parametrize("name", DISTRIBUTED)
def test_a_script_for_two_devices_is_rehearsed_on_one(sandbox: Sandbox, name: str) -> None:
    words = ("launch", "--logical", "2", "--memory", "400MiB", str(EXAMPLES / name))
    ran = sandbox.sublet(*words, env={**sandbox.environ, **QUIET})
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(DISTRIBUTED[name], ran.stdout.strip()), ran.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_takes_leases_for_its_parts(sandbox: Sandbox, name: str) -> None:
    ran = sandbox.python(EXAMPLES / name, env={**sandbox.environ, **QUIET})
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == PROGRAMS[name]


def test_the_page_names_all_of_them() -> None:
    page = (ROOT / "docs/patterns.md").read_text()
    named = set(re.findall(r"\(\.\./examples/([\w/]+\.py)\)", page))
    assert named == {*SCRIPTS, *DISTRIBUTED, *PROGRAMS, *ELSEWHERE}
    assert {path.name for path in (EXAMPLES / "patterns").iterdir()} == {
        Path(name).name for name in named if name.startswith("patterns/")
    }
