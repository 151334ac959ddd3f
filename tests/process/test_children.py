"""Processes that a program leaves behind when it ends."""

import os
import signal
from collections.abc import Iterator

import pytest

from support.sandbox import Sandbox, wait_for

LEAVES = """
import subprocess, sys
child = subprocess.Popen(["sleep", "600"], start_new_session=True, stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(child.pid)
sys.exit(3)
"""


def lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.fixture
def leaving(sandbox: Sandbox) -> Iterator[Sandbox]:
    sandbox.write("train.py", LEAVES)
    yield sandbox
    for pid, words in sandbox.processes().items():
        if words.startswith("sleep 600"):
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda gone=pid: not lives(gone), "the child is gone")  # type: ignore[misc]


@pytest.mark.every_python
@pytest.mark.parametrize("way", [[], ["--cold"]])
def test_what_a_program_leaves_behind_is_ended_and_named(leaving: Sandbox, way: list[str]) -> None:
    ran = leaving.sublet("run", *way, "train.py")
    pid = int(ran.stdout)
    assert ran.returncode == 3
    assert not lives(pid)
    assert f"stopped processes that the program left behind: sleep ({pid})" in ran.stderr
    assert "--leave-children" in ran.stderr


def test_a_quiet_run_says_nothing_of_it(leaving: Sandbox) -> None:
    assert "left behind" not in leaving.sublet("run", "-q", "train.py").stderr


@pytest.mark.parametrize("way", [[], ["--cold"]])
def test_a_child_that_may_go_on_outlives_its_program_and_the_lease(
    leaving: Sandbox, way: list[str]
) -> None:
    """It holds no lease then, and neither a keeper nor the end of the broker touches it."""
    ran = leaving.sublet("run", "--leave-children", *way, "train.py")
    pid = int(ran.stdout)
    assert ran.returncode == 3
    assert "left behind" not in ran.stderr
    assert leaving.status()["leases"] == []
    wait_for(
        lambda: not any("keeper" in words for words in leaving.processes().values() if way),
        "its keeper has ended",
    )
    assert lives(pid)


@pytest.mark.every_python
def test_helpers_that_end_by_themselves_are_nobodys_children(sandbox: Sandbox) -> None:
    """Those of multiprocessing end a moment after their program."""
    sandbox.write(
        "train.py",
        "import multiprocessing\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(abs, [-1]))\n"
        "    lock = multiprocessing.get_context('forkserver').Manager().Lock()\n",
    )
    ran = sandbox.sublet("run", "train.py", check=True)
    assert ran.stdout == "[1]\n"
    assert "left behind" not in ran.stderr
