"""Workers that end before they begin."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sublet.keeper import process_tree
from support.queue import ended, submit
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


def _waiting_pair(sandbox: Sandbox) -> tuple[int, int]:
    """The keeper and the worker that the nursery has forked ahead."""

    def found() -> tuple[int, int] | None:
        (nursery,) = sandbox.status()["nurseries"]
        below = process_tree.descendants(nursery["pid"])
        return (below[1], below[2]) if len(below) == 3 else None  # The witness comes first.

    return wait_for(found, "a pair waits")  # type: ignore[no-any-return]


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not process_tree.descendants(pid) and _is_dead(pid), "it is dead")


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize("victim", ["keeper", "worker"])
def test_a_pair_that_was_killed_while_it_waited_costs_no_program(
    new_sandbox: Callable[..., Sandbox], victim: str
) -> None:
    """The program is started anew, and its user is told nothing: no line of it had run."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="4GiB")
    sandbox.warm()
    sandbox.write("train.py", "print('ran')")
    for command in ("run", "submit"):
        keeper, worker = _waiting_pair(sandbox)
        _kill(keeper if victim == "keeper" else worker)
        if command == "run":
            ran = sandbox.sublet("run", "--memory", "64MiB", "train.py", check=True)
            assert ran.stdout == "ran\n"
            assert "started warm" in ran.stderr
            assert len(ran.stderr.splitlines()) == 1
        else:
            (row,) = ended(sandbox, submit(sandbox, "train.py"))
            assert (row["cause"], row["exit"]) == ("exited", 0)


@pytest.mark.parametrize("victim", ["keeper", "worker"])
def test_a_pair_that_is_killed_between_its_order_and_the_first_line_costs_no_program(
    new_sandbox: Callable[..., Sandbox], victim: str
) -> None:
    """The worker stands still when it is let go, so the broker knows it when it is killed."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="4GiB")
    sandbox.warm()
    sandbox.write("train.py", "print('ran')")
    keeper, worker = _waiting_pair(sandbox)
    os.kill(worker, signal.SIGSTOP)
    wait_for(lambda: process_tree.is_stopped(worker), "it stands still")
    client = sandbox.start("run", "--memory", "64MiB", "train.py")
    wait_for(
        lambda: [row for row in sandbox.status()["leases"] if row["pid"] == worker],
        "the worker is known",
    )
    os.kill(keeper if victim == "keeper" else worker, signal.SIGKILL)
    out, said = client.communicate(timeout=120)
    assert (client.returncode, out) == (0, "ran\n"), said
    assert len(said.splitlines()) == 1
    (row,) = sandbox.status()["nurseries"]
    assert row["state"] == "warm"
