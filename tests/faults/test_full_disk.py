"""A home on a disk without space or without inodes: everybody is told, and nothing is lost."""

import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from support.queue import HOLD, ended, reached, row, said, shell, stands
from support.sandbox import Sandbox, wait_for

NewSandbox = Callable[..., Sandbox]
_SIZE, _INODES = 4 << 20, 60


@pytest.fixture
def small_sandbox(new_sandbox: NewSandbox) -> Iterator[Sandbox]:
    """A sandbox whose home is a small file system of its own."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="1GiB")
    sandbox.home.mkdir(mode=0o700)
    options = f"size={_SIZE},nr_inodes={_INODES},mode=700"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", sandbox.home],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("a file system can be mounted by root only")
    try:
        yield sandbox
    finally:
        free(sandbox)
        sandbox.close()
        subprocess.run(["umount", "--lazy", sandbox.home], check=True)


def fill(sandbox: Sandbox) -> None:
    """Leave no space at all."""
    with (sandbox.home / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def fill_inodes(sandbox: Sandbox) -> None:
    """Leave no room for another file."""
    with contextlib.suppress(OSError):
        for number in range(_INODES):
            (sandbox.home / f"filler{number}").touch()


def free(sandbox: Sandbox) -> None:
    for path in sandbox.home.glob("filler*"):
        path.unlink()


def log(sandbox: Sandbox) -> str:
    return (sandbox.home / "broker.log").read_text()


def write_nothing(pid: int, nothing: bool) -> None:
    """Let a process write to no file, as if the disk were full; space in the journal is no help."""
    most = resource.RLIM_INFINITY
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0 if nothing else most, most))


def test_every_verb_answers_on_a_full_disk_and_says_what_to_do(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="1GiB")
    running = shell(sandbox, HOLD.format("go"))
    other = shell(sandbox, f"{HOLD.format('go')}; exit 4")
    waiting = shell(sandbox, "exit 5", "--after", str(other))
    before = reached(sandbox, running, "running")
    reached(sandbox, other, "running")
    pid = sandbox.status()["pid"]
    write_nothing(pid, True)
    answer = sandbox.sublet("pause", str(running))
    assert answer.returncode != 0
    assert "paused; keeps its lease" in answer.stderr
    assert "Free some space" in answer.stderr
    assert stands(sandbox, before)
    for words in (["resume", str(running)], ["cancel", str(running)], ["pause", str(waiting)]):
        answer = sandbox.sublet(*words)
        assert "Free some space" in answer.stderr
    for words in (["submit", "true"], ["run", "true"]):
        answer = sandbox.sublet(*words)
        assert answer.returncode != 0
        assert "Traceback" not in answer.stderr
    assert "Free some space" in sandbox.sublet("submit", "--memory", "64MiB", "true").stderr
    wait_for(lambda: row(sandbox, running)["state"] == "finished", "it has ended")
    assert "cancelled" in row(sandbox, running)["reason"]
    assert "Free some space" in sandbox.sublet("retry", str(running)).stderr
    assert sandbox.sublet("explain", str(other)).returncode == 0
    assert sandbox.status()["pid"] == pid
    write_nothing(pid, False)
    sandbox.write("go", "")
    wait_for(lambda: sandbox.sublet("resume", str(waiting)).returncode == 0, "it is written again")
    assert [one["exit"] for one in ended(sandbox, other, waiting, running)] == [4, 5, 0]
    sandbox.sublet("down", check=True)
    assert [row(sandbox, number)["exit"] for number in (other, waiting)] == [4, 5]
    assert "Traceback" not in log(sandbox)


def test_a_broker_cannot_start_on_a_full_disk_and_says_so_in_one_line(
    small_sandbox: Sandbox,
) -> None:
    sandbox = small_sandbox
    running = shell(sandbox, f"{HOLD.format('go')}; exit 4")
    reached(sandbox, running, "running")
    sandbox.sublet("down", check=True)
    (sandbox.home / "broker.log").unlink()
    (sandbox.home / "broker.log").touch()
    fill(sandbox)
    answer = sandbox.sublet("status")
    assert answer.returncode == 2
    assert "cannot be used" in answer.stderr
    assert "Free some space" in answer.stderr
    assert "Traceback" not in answer.stderr + log(sandbox)
    free(sandbox)
    sandbox.write("go", "")
    assert ended(sandbox, running)[0]["exit"] == 4


def test_a_first_broker_cannot_start_without_inodes_and_says_so_in_one_line(
    small_sandbox: Sandbox,
) -> None:
    sandbox = small_sandbox
    fill_inodes(sandbox)
    answer = sandbox.sublet("status")
    assert answer.returncode == 2
    assert "cannot be used" in answer.stderr
    assert "Traceback" not in answer.stderr
    free(sandbox)
    assert sandbox.status()["leases"] == []


def test_the_broker_lives_without_inodes_and_jobs_wait_for_them(small_sandbox: Sandbox) -> None:
    sandbox = small_sandbox
    first = shell(sandbox, f"{HOLD.format('go')}; echo first")
    reached(sandbox, first, "running")
    pid = sandbox.status()["pid"]
    fill_inodes(sandbox)
    second = shell(sandbox, "echo second")
    wait_for(lambda: "No space left on device" in row(sandbox, second)["reason"], "it says why")
    assert row(sandbox, second)["state"] == "waiting"
    assert row(sandbox, first)["state"] == "running"
    assert sandbox.status()["pid"] == pid
    free(sandbox)
    sandbox.write("go", "")
    assert [one["exit"] for one in ended(sandbox, first, second)] == [0, 0]
    assert said(sandbox, second) == "second\n"
    assert "Traceback" not in log(sandbox)
    assert os.path.exists(f"/proc/{pid}")


def test_a_broker_that_can_write_nothing_says_so_in_one_line(new_sandbox: NewSandbox) -> None:
    """After a kill: what the last one had committed is found by the next that can."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="1GiB")
    running = shell(sandbox, f"{HOLD.format('go')}; exit 4")
    reached(sandbox, running, "running")
    pid = sandbox.status()["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"), "the broker is gone")
    answer = sandbox.sublet("status", preexec_fn=lambda: write_nothing(0, True))
    assert answer.returncode == 2
    assert "cannot be used" in answer.stderr
    assert "Free some space" in answer.stderr
    assert len(answer.stderr.splitlines()) <= 2
    sandbox.write("go", "")
    assert ended(sandbox, running)[0]["exit"] == 4
