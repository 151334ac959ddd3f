"""The world fails for a while: jobs wait it out, and say so. A fault of the job's own ends it."""

import os
import shutil
import signal
import sys
from collections.abc import Callable

import pytest

from support.box import PATIENCE, Box, wait_for
from support.queue import HOLD, ended, reached, row, said, shell, submit

NewBox = Callable[..., Box]


@pytest.mark.parametrize(
    ("directory", "said_of_it"),
    [("logs", "its log cannot be opened"), ("runs", "it cannot be started")],
)
def test_a_queue_waits_for_a_directory_that_is_away_and_then_all_of_it_runs(
    new_box: NewBox, directory: str, said_of_it: str
) -> None:
    box = new_box(SUBLET_CPU_MEMORY="512MiB")
    assert box.status()["pid"]
    os.rename(box.home / directory, box.home / "away")
    options = ("--array", "1-41", "--retries", "5", "--memory", "128MiB")
    answer = box.sublet("submit", *options, "sh", "-c", "echo ran", check=True)
    assert "#1" in answer.stdout
    last = 41
    wait_for(lambda: said_of_it in row(box, last)["reason"], "it says what it waits for")
    assert "tries again in" in row(box, last)["reason"]
    assert row(box, last)["state"] == "waiting"
    assert said_of_it in box.sublet("explain", str(last)).stdout
    assert said_of_it in box.status()["waiting"][0]["reason"]
    os.rename(box.home / "away", box.home / directory)
    told = ended(box, *range(1, last + 1))
    # It has cost them nothing: all are in their first attempt.
    assert {(one["code"], one["attempt"]) for one in told} == {(0, 1)}
    assert said(box, last) == "ran\n"


def test_a_program_in_the_foreground_waits_for_a_directory_that_is_away(new_box: NewBox) -> None:
    box = new_box(SUBLET_CPU_MEMORY="512MiB")
    assert box.status()["pid"]
    os.rename(box.home / "runs", box.home / "away")
    client = box.start("run", "--memory", "64MiB", "sh", "-c", "echo ran")
    wait_for(
        lambda: any("it cannot be started" in one["reason"] for one in box.status()["waiting"]),
        "it says what it waits for",
    )
    os.rename(box.home / "away", box.home / "runs")
    out, err = client.communicate(timeout=PATIENCE)
    assert (client.returncode, out) == (0, "ran\n")
    assert "it cannot be started: No such file or directory" in err


def test_a_keeper_that_had_no_room_for_its_socket_listens_as_soon_as_it_can(
    new_box: NewBox,
) -> None:
    """And the next broker finds it."""
    box = new_box(SUBLET_CPU_MEMORY="512MiB")
    first = shell(box, HOLD.format("first"))
    number = shell(box, f"{HOLD.format('go')}; exit 4", "--after", str(first))
    sock = box.home / "runs" / f"{number}.1" / "keeper.sock"
    sock.parent.mkdir()
    sock.touch()
    box.write("first", "")
    reached(box, number, "running")
    assert not sock.is_socket()
    sock.unlink()
    wait_for(sock.is_socket, "it listens")
    pid = box.status()["pid"]
    os.kill(pid, signal.SIGKILL)
    box.write("go", "")
    assert ended(box, number)[0]["code"] == 4


def test_a_job_whose_interpreter_has_gone_ends_and_the_broker_lives(new_box: NewBox) -> None:
    box = new_box(SUBLET_CPU_MEMORY="512MiB")
    python = box.work / "python3"
    python.symlink_to(sys.executable)
    box.write("program.py", "")
    pid = box.status()["pid"]
    holder = shell(box, HOLD.format("go"))
    gone = submit(box, "--after", str(holder), "--python", str(python), "program.py")
    shutil.move(python, box.work / "elsewhere")
    box.write("go", "")
    assert ended(box, gone)[0]["code"] == 127
    assert box.status()["pid"] == pid
