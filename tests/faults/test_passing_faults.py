"""The world fails for a while: jobs wait it out, and say so. A fault of the job's own ends it."""

import os
import shutil
import signal
import sys
from collections.abc import Callable

import pytest

from support.queue import HOLD, ended, reached, row, said, shell, submit
from support.sandbox import PATIENCE, Sandbox, wait_for

NewSandbox = Callable[..., Sandbox]


@pytest.mark.parametrize(
    ("directory", "said_of_it"),
    [("logs", "its log cannot be opened"), ("runs", "it cannot be started")],
)
def test_a_queue_waits_for_a_directory_that_is_away_and_then_all_of_it_runs(
    new_sandbox: NewSandbox, directory: str, said_of_it: str
) -> None:
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="512MiB")
    assert sandbox.status()["pid"]
    os.rename(sandbox.home / directory, sandbox.home / "away")
    options = ("--array", "1-41", "--retries", "5", "--memory", "128MiB")
    answer = sandbox.sublet("submit", *options, "sh", "-c", "echo ran", check=True)
    assert "#1" in answer.stdout
    last = 41
    wait_for(lambda: said_of_it in row(sandbox, last)["reason"], "it says what it waits for")
    assert "tries again in" in row(sandbox, last)["reason"]
    assert row(sandbox, last)["state"] == "waiting"
    assert said_of_it in sandbox.sublet("explain", str(last)).stdout
    assert said_of_it in sandbox.status()["waiting"][0]["reason"]
    os.rename(sandbox.home / "away", sandbox.home / directory)
    rows = ended(sandbox, *range(1, last + 1))
    # It has cost them nothing: all are in their first attempt.
    assert {(one["code"], one["attempt"]) for one in rows} == {(0, 1)}
    assert said(sandbox, last) == "ran\n"


def test_a_program_in_the_foreground_waits_for_a_directory_that_is_away(
    new_sandbox: NewSandbox,
) -> None:
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="512MiB")
    assert sandbox.status()["pid"]
    os.rename(sandbox.home / "runs", sandbox.home / "away")
    client = sandbox.start("run", "--memory", "64MiB", "sh", "-c", "echo ran")
    wait_for(
        lambda: any("it cannot be started" in one["reason"] for one in sandbox.status()["waiting"]),
        "it says what it waits for",
    )
    os.rename(sandbox.home / "away", sandbox.home / "runs")
    out, err = client.communicate(timeout=PATIENCE)
    assert (client.returncode, out) == (0, "ran\n")
    assert "it cannot be started: No such file or directory" in err


def test_a_keeper_that_had_no_room_for_its_socket_listens_as_soon_as_it_can(
    new_sandbox: NewSandbox,
) -> None:
    """And the next broker finds it."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="512MiB")
    first = shell(sandbox, HOLD.format("first"))
    number = shell(sandbox, f"{HOLD.format('go')}; exit 4", "--after", str(first))
    sock = sandbox.home / "runs" / f"{number}.1" / "keeper.sock"
    sock.parent.mkdir()
    sock.touch()
    sandbox.write("first", "")
    reached(sandbox, number, "running")
    assert not sock.is_socket()
    sock.unlink()
    wait_for(sock.is_socket, "it listens")
    pid = sandbox.status()["pid"]
    os.kill(pid, signal.SIGKILL)
    sandbox.write("go", "")
    assert ended(sandbox, number)[0]["code"] == 4


def test_a_job_whose_interpreter_has_gone_ends_and_the_broker_lives(
    new_sandbox: NewSandbox,
) -> None:
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="512MiB")
    python = sandbox.work / "python3"
    python.symlink_to(sys.executable)
    sandbox.write("program.py", "")
    pid = sandbox.status()["pid"]
    holder = shell(sandbox, HOLD.format("go"))
    gone = submit(sandbox, "--after", str(holder), "--python", str(python), "program.py")
    shutil.move(python, sandbox.work / "elsewhere")
    sandbox.write("go", "")
    assert ended(sandbox, gone)[0]["code"] == 127
    assert sandbox.status()["pid"] == pid
