"""Workers that end before they begin."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.sandbox import Sandbox, wait_for

FAKE = """
import os
__version__ = "0.0"
def end():
    if os.path.exists({mark!r}):
        os._exit(1)
os.register_at_fork(after_in_child=end)
"""


@pytest.mark.every_python
def test_programs_start_cold_where_every_fork_dies_and_say_why(
    new_sandbox: Callable[..., Sandbox], tmp_path: Path
) -> None:
    """A few tries, and no loop of them. Other interpreters keep their nurseries."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="4GiB")
    venv, mark = tmp_path / "venv", tmp_path / "forks-die"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "tensorflow.py").write_text(FAKE.format(mark=str(mark)))
    sandbox.write("train.py", "print('ran')")
    python = str(venv / "bin/python")
    before = sandbox.sublet("run", "--python", python, "train.py", check=True)
    assert "started warm" in before.stderr
    mark.touch()
    # The pair for the next program may have been forked before that.
    sandbox.sublet("run", "--python", python, "train.py", check=True)
    for _ in range(2):
        ran = sandbox.sublet("run", "--python", python, "train.py", check=True)
        assert ran.stdout == "ran\n"
        assert "started cold: 3 workers in a row ended before they began" in ran.stderr
    (row,) = sandbox.status()["nurseries"]
    assert row["python"] == python
    assert row["state"].startswith("off: 3 workers in a row")
    assert sandbox.processes().keys() == {sandbox.status()["pid"]}


def test_programs_start_cold_where_every_nursery_dies_and_say_why(
    new_sandbox: Callable[..., Sandbox], tmp_path: Path
) -> None:
    """Each of them as soon as it is warm, as if the kernel were short of memory."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="4GiB")
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "tensorflow.py").write_text(
        "import os, signal\n__version__ = '0.0'\n"
        "os.register_at_fork(before=lambda: os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    sandbox.write("train.py", "print('ran')")

    def why() -> str:
        ran = sandbox.sublet("run", "--python", str(venv / "bin/python"), "train.py", check=True)
        assert ran.stdout == "ran\n"
        assert "started cold: " in ran.stderr
        return str(ran.stderr)

    wait_for(lambda: "came from it, again and again" in why(), "its nursery is done without")
    (row,) = sandbox.status()["nurseries"]
    assert row["state"].startswith("off: the nursery ended before a worker came from it")
