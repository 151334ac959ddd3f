"""The world fails for a while: jobs wait it out, and say so. A fault of the job's own ends it."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

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
    assert {(one["exit"], one["attempt"]) for one in rows} == {(0, 1)}
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
    assert ended(sandbox, number)[0]["exit"] == 4


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
    assert ended(sandbox, gone)[0]["exit"] == 127
    assert sandbox.status()["pid"] == pid


POOL = """
import os, time
import sublet

def hold(number):
    open("called", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.02)
    return number

if __name__ == "__main__":
    with sublet.Pool(1, memory="64MiB", cold=True) as pool:
        print([one.result() for one in [pool.submit(hold, number) for number in (1, 2)]])
"""
LEASE = "import sublet; sublet.lease('3GiB'); print('leased')"


@contextmanager
def no_broker(sandbox: Sandbox) -> Iterator[None]:
    """The broker is killed, and until the dedent none can start: the home is away."""
    pid, away = sandbox.status()["pid"], sandbox.home.with_name("away")
    os.rename(sandbox.home, away)
    sandbox.home.touch()
    os.kill(pid, signal.SIGKILL)
    try:
        yield
    finally:
        sandbox.home.unlink()
        os.rename(away, sandbox.home)


def _says_so(path: Path) -> bool:
    return "tried again and again" in path.read_text()


def test_who_has_a_job_waits_until_a_broker_can_start_again(new_sandbox: NewSandbox) -> None:
    """Programs that run or wait, a pool, a process that waits for a lease of its own, and who
    waits for a submitted job. All of them say so, and none of them loses anything."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="4GiB")
    submitted = shell(sandbox, f"{HOLD.format('go')}; exit 4")
    sandbox.write("pool.py", POOL)
    clients: dict[str, subprocess.Popen[str]] = {}

    def start(name: str, *words: str) -> None:
        with (sandbox.work / name).open("w") as said_to:
            command = [sys.executable, *words]
            clients[name] = subprocess.Popen(
                command, cwd=sandbox.work, env=sandbox.environ, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said_to,
            )  # fmt: skip

    run = ("-m", "sublet", "run", "--memory")
    start("runs", *run, "64MiB", "sh", "-c", f"touch began; {HOLD.format('go')}; exit 7")
    start("pool", "pool.py")
    start("watches", "-m", "sublet", "wait", str(submitted))
    for name in ("began", "called"):
        wait_for((sandbox.work / name).exists, f"{name} is there")
    start("waits", *run, "3GiB", "sh", "-c", "exit 8")
    start("leases", "-c", LEASE)
    wait_for(lambda: len(sandbox.status()["waiting"]) == 2, "two of them wait")
    with no_broker(sandbox):
        for name in clients:
            wait_for(partial(_says_so, sandbox.work / name), f"the client that {name} says so")
        assert all(client.poll() is None for client in clients.values())
    sandbox.write("go", "")
    out = {name: client.communicate(timeout=PATIENCE)[0] for name, client in clients.items()}
    codes = {name: client.returncode for name, client in clients.items()}
    assert codes == {"runs": 7, "pool": 0, "watches": 4, "waits": 8, "leases": 0}
    assert out["pool"] == "[1, 2]\n"
    assert out["leases"] == "leased\n"


def test_a_program_can_be_ended_while_no_broker_can_start(new_sandbox: NewSandbox) -> None:
    """By the first Ctrl-C; the second one does not wait for its exit code any more."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="4GiB")
    trap = "trap 'touch trapped; exit 9' INT; touch began"
    with (sandbox.work / "said").open("w") as said_to:
        client = sandbox.start(
            "run", "--memory", "64MiB", "sh", "-c", f"{trap}; {HOLD.format('go')}", stderr=said_to
        )
    wait_for((sandbox.work / "began").exists, "it runs")
    with no_broker(sandbox):
        wait_for(lambda: _says_so(sandbox.work / "said"), "its client says so")
        client.send_signal(signal.SIGINT)
        wait_for((sandbox.work / "trapped").exists, "it got the signal")
        wait_for(lambda: sandbox.processes().keys() == {client.pid}, "it has ended")
        assert client.poll() is None
        client.send_signal(signal.SIGINT)
        client.communicate(timeout=PATIENCE)
        assert client.returncode == 2
        assert (sandbox.work / "said").read_text().count("cannot be used") == 2
    assert sandbox.status()["leases"] == []
