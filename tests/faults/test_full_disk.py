"""A home on a disk without space or without inodes: everybody is told, and nothing is lost."""

import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from support.box import Box, wait_for
from support.queue import HOLD, ended, reached, row, said, shell, stands

NewBox = Callable[..., Box]
_SIZE, _INODES = 4 << 20, 60


@pytest.fixture
def small_box(new_box: NewBox) -> Iterator[Box]:
    """A box whose home is a small file system of its own."""
    box = new_box(SUBLET_CPU_MEMORY="1GiB")
    box.home.mkdir(mode=0o700)
    options = f"size={_SIZE},nr_inodes={_INODES},mode=700"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", box.home], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a file system can be mounted by root only")
    try:
        yield box
    finally:
        free(box)
        box.close()
        subprocess.run(["umount", "--lazy", box.home], check=True)


def fill(box: Box) -> None:
    """Leave no space at all."""
    with (box.home / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def fill_inodes(box: Box) -> None:
    """Leave no room for another file."""
    with contextlib.suppress(OSError):
        for number in range(_INODES):
            (box.home / f"filler{number}").touch()


def free(box: Box) -> None:
    for path in box.home.glob("filler*"):
        path.unlink()


def log(box: Box) -> str:
    return (box.home / "broker.log").read_text()


def write_nothing(pid: int, nothing: bool) -> None:
    """Let a process write to no file, as if the disk were full; space in the journal is no help."""
    most = resource.RLIM_INFINITY
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0 if nothing else most, most))


def test_every_verb_answers_on_a_full_disk_and_says_what_to_do(new_box: NewBox) -> None:
    box = new_box(SUBLET_CPU_MEMORY="1GiB")
    running = shell(box, HOLD.format("go"))
    other = shell(box, f"{HOLD.format('go')}; exit 4")
    waiting = shell(box, "exit 5", "--after", str(other))
    before = reached(box, running, "running")
    reached(box, other, "running")
    pid = box.status()["pid"]
    write_nothing(pid, True)
    told = box.sublet("pause", str(running))
    assert told.returncode != 0
    assert "is paused" in told.stderr
    assert "Free some space" in told.stderr
    assert stands(box, before)
    for words in (["resume", str(running)], ["cancel", str(running)], ["pause", str(waiting)]):
        told = box.sublet(*words)
        assert "Free some space" in told.stderr
    for words in (["submit", "true"], ["run", "true"]):
        told = box.sublet(*words)
        assert told.returncode != 0
        assert "Traceback" not in told.stderr
    assert "Free some space" in box.sublet("submit", "--memory", "64MiB", "true").stderr
    wait_for(lambda: row(box, running)["state"] == "finished", "it has ended")
    assert "cancelled" in row(box, running)["reason"]
    assert "Free some space" in box.sublet("retry", str(running)).stderr
    assert box.sublet("explain", str(other)).returncode == 0
    assert box.status()["pid"] == pid
    write_nothing(pid, False)
    box.write("go", "")
    wait_for(lambda: box.sublet("resume", str(waiting)).returncode == 0, "it is written again")
    assert [one["code"] for one in ended(box, other, waiting, running)] == [4, 5, 0]
    box.sublet("down", check=True)
    assert [row(box, number)["code"] for number in (other, waiting)] == [4, 5]
    assert "Traceback" not in log(box)


def test_a_broker_cannot_start_on_a_full_disk_and_says_so_in_one_line(small_box: Box) -> None:
    box = small_box
    running = shell(box, f"{HOLD.format('go')}; exit 4")
    reached(box, running, "running")
    box.sublet("down", check=True)
    (box.home / "broker.log").unlink()
    (box.home / "broker.log").touch()
    fill(box)
    told = box.sublet("status")
    assert told.returncode == 2
    assert "cannot be used" in told.stderr
    assert "Free some space" in told.stderr
    assert "Traceback" not in told.stderr + log(box)
    free(box)
    box.write("go", "")
    assert ended(box, running)[0]["code"] == 4


def test_a_first_broker_cannot_start_without_inodes_and_says_so_in_one_line(small_box: Box) -> None:
    box = small_box
    fill_inodes(box)
    told = box.sublet("status")
    assert told.returncode == 2
    assert "cannot be used" in told.stderr
    assert "Traceback" not in told.stderr
    free(box)
    assert box.status()["leases"] == []


def test_the_broker_lives_without_inodes_and_jobs_wait_for_them(small_box: Box) -> None:
    box = small_box
    first = shell(box, f"{HOLD.format('go')}; echo first")
    reached(box, first, "running")
    pid = box.status()["pid"]
    fill_inodes(box)
    second = shell(box, "echo second")
    wait_for(lambda: "No space left on device" in row(box, second)["reason"], "it says why")
    assert row(box, second)["state"] == "waiting"
    assert row(box, first)["state"] == "running"
    assert box.status()["pid"] == pid
    free(box)
    box.write("go", "")
    assert [one["code"] for one in ended(box, first, second)] == [0, 0]
    assert said(box, second) == "second\n"
    assert "Traceback" not in log(box)
    assert os.path.exists(f"/proc/{pid}")


def test_a_broker_that_can_write_nothing_says_so_in_one_line(new_box: NewBox) -> None:
    """After a kill: what the last one had committed is found by the next that can."""
    box = new_box(SUBLET_CPU_MEMORY="1GiB")
    running = shell(box, f"{HOLD.format('go')}; exit 4")
    reached(box, running, "running")
    pid = box.status()["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"), "the broker is gone")
    told = box.sublet("status", preexec_fn=lambda: write_nothing(0, True))
    assert told.returncode == 2
    assert "cannot be used" in told.stderr
    assert "Free some space" in told.stderr
    assert len(told.stderr.splitlines()) <= 2
    box.write("go", "")
    assert ended(box, running)[0]["code"] == 4
