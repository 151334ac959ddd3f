"""What quick commands and the broker must not load."""

import json
import subprocess
import sys

import pytest

HEAVY = {"tensorflow", "keras", "numpy", "rich", "click", "ray", "textual", "starlette", "uvicorn"}


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter has after this statement."""
    program = (
        f"import json, sys\nbefore = set(sys.modules)\n{statement}\n"
        "print(json.dumps([name.partition('.')[0] for name in set(sys.modules) - before]))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return set(json.loads(answer.stdout))


def test_importing_sublet_loads_nothing_but_itself() -> None:
    loaded = loaded_by("import sublet")
    assert not loaded & (HEAVY | {"msgspec", "psutil", "pynvml", "sqlite3"})
    assert {name for name in loaded if name not in sys.stdlib_module_names} == {"sublet"}


def test_nothing_is_loaded_before_ctrl_c_ends_a_command_quietly() -> None:
    """Until then it is a traceback."""
    assert loaded_by("import sublet.cli") == {"sublet"}


@pytest.mark.parametrize("module", ["sublet.broker.broker", "sublet.broker.__main__"])
def test_the_broker_loads_no_tensorflow_and_nothing_to_draw_with(module: str) -> None:
    assert not loaded_by(f"import {module}") & HEAVY
